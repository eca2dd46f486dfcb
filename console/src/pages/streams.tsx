/** Streams: what is kept by offset, read from anywhere in it. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { at, order, query, type Listed, type Wide } from "../api";
import { useAsked, useDoing } from "../asking";
import { Answered, Card, Confirm, Field, Form, Outcome, Table, usePages } from "../parts";
import { bytes, count, moment, payloadText, span } from "../words";
import type { PageProps } from "../main";

interface StreamRow {
  name: string;
  filters: string[];
  retention_ms: Wide;
  retention_bytes: Wide;
  created_ms: Wide;
}

interface StreamInfo extends StreamRow {
  partitions: { partition: number; leader: number | null; start: Wide; next: Wide; file_bytes: Wide }[];
}

interface StreamRecords {
  items: { offset: Wide; timestamp_ms: Wide; protocol: string; address: string; sender: string; key: string | null; payload: { text?: string | null; base64?: string | null } | null }[];
  start: Wide;
  next: Wide;
}

function Records(props: { tenant: string; stream: string; partition: number; start: Wide }): JSX.Element {
  const [typed, setTyped] = useState(String(props.start));
  const [offset, setOffset] = useState(String(props.start));
  const path = at`/v1/tenants/${props.tenant}/streams/${props.stream}/records` + query({ partition: props.partition, offset, bytes_max: 65536 });
  const asked = useAsked<StreamRecords>(path);
  return (
    <>
      <Form label="Read from an offset" onSubmit={() => setOffset(typed)}>
        <Field name={`Partition ${props.partition}, from offset`} kind="number" value={typed} onChange={setTyped} required />
        <button class="main">Read</button>
      </Form>
      <Answered asked={asked}>
        {(page) => (
          <>
            <Table caption={`Messages from ${offset} on`} rows={page.items} empty="Nothing is there yet." columns={[
              { name: "Offset", of: (row) => row.offset, number: true },
              { name: "At", of: (row) => moment(row.timestamp_ms) },
              { name: "By", of: (row) => `${row.protocol}, ${row.sender || "–"}` },
              { name: "Topic", of: (row) => row.address },
              { name: "Payload", of: (row) => <pre>{payloadText(row.payload)}</pre> },
            ]} />
            <div class="row">
              <button disabled={!page.items.length} onClick={() => { setOffset(String(page.next)); setTyped(String(page.next)); }}>Go on at {page.next}</button>
            </div>
          </>
        )}
      </Answered>
    </>
  );
}

function Stream(props: { tenant: string; name: string; onClose: () => void; onDelete: () => void }): JSX.Element {
  const asked = useAsked<StreamInfo>(at`/v1/tenants/${props.tenant}/streams/${props.name}`, 10_000);
  const [reading, setReading] = useState<{ partition: number; start: Wide } | null>(null);
  return (
    <Card title={`Stream ${props.name}`} wide opened>
      <Answered asked={asked}>
        {(info) => (
          <Table caption="Partitions, as this node's replica has them" rows={info.partitions} empty="It has no partition here." columns={[
            { name: "Partition", of: (row) => row.partition, number: true },
            { name: "Leader", of: (row) => row.leader == null ? "none" : `node ${row.leader}` },
            { name: "First offset", of: (row) => count(row.start), number: true },
            { name: "Next offset", of: (row) => count(row.next), number: true },
            { name: "On disk", of: (row) => bytes(row.file_bytes), number: true },
            { name: "Look", of: (row) => <button onClick={() => setReading({ partition: row.partition, start: row.start })}>Read</button> },
          ]} />
        )}
      </Answered>
      {reading && <Records key={reading.partition} tenant={props.tenant} stream={props.name} partition={reading.partition} start={reading.start} />}
      <div class="row">
        <button onClick={props.onClose}>Close</button>
        <button class="danger" onClick={props.onDelete}>Delete this stream…</button>
      </div>
    </Card>
  );
}

function Create(props: { tenant: string; done: () => void }): JSX.Element {
  const [name, setName] = useState("");
  const [filter, setFilter] = useState("");
  const [days, setDays] = useState("7");
  const doing = useDoing();
  const create = async () => {
    const done = await doing.run(async () => {
      const body = { name, filters: filter.split(/\s+/).filter(Boolean), retention_ms: Math.round(Number(days) * 86_400_000) };
      await order("POST", at`/v1/tenants/${props.tenant}/streams`, body);
      return `The stream ${name} captures from now on.`;
    });
    if (done) props.done();
  };
  return (
    <Card title="A new stream" wide>
      <Form label="Create a stream" onSubmit={create}>
        <Field name="Stream name" value={name} onChange={setName} required />
        <Field name="Topic filters, by spaces" value={filter} onChange={setFilter} required hint="sensors/#" />
        <Field name="Kept for days (0: for ever)" kind="number" value={days} onChange={setDays} required />
        <button class="main" disabled={doing.busy}>Create</button>
      </Form>
      <Outcome doing={doing} />
    </Card>
  );
}

export function Streams(props: PageProps): JSX.Element {
  const { tenant } = props;
  const pages = usePages();
  const [open, setOpen] = useState<string | null>(null);
  const [leaving, setLeaving] = useState<string | null>(null);
  const doing = useDoing();
  const asked = useAsked<Listed<StreamRow>>(tenant ? at`/v1/tenants/${tenant}/streams` + query({ after: pages.after }) : null, 15_000);
  if (!tenant) return <p class="empty">Choose a tenant at the top of the page.</p>;
  const remove = async (name: string) => {
    setLeaving(null);
    const done = await doing.run(async () => {
      await order("POST", at`/v1/tenants/${tenant}/streams/${name}/delete`);
      return `The stream ${name} is gone.`;
    });
    if (done) {
      setOpen(null);
      asked.again();
    }
  };
  return (
    <>
      <Outcome doing={doing} />
      {open !== null && <Stream key={open} tenant={tenant} name={open} onClose={() => setOpen(null)} onDelete={() => setLeaving(open)} />}
      <Card title="Streams" wide>
        <Answered asked={asked}>
          {(page) => (
            <>
              <Table caption={`Of ${tenant}`} rows={page.items} empty="There is no stream yet: create one below." columns={[
                { name: "Stream", of: (row) => <button onClick={() => setOpen(row.name)}>{row.name}</button> },
                { name: "Captures", of: (row) => <code>{row.filters.join(" ")}</code> },
                { name: "Keeps", of: (row) => Number(row.retention_ms) ? span(Number(row.retention_ms) / 1000) : "for ever" },
                { name: "At most", of: (row) => Number(row.retention_bytes) ? bytes(row.retention_bytes) : "without a bound" },
                { name: "Since", of: (row) => moment(row.created_ms) },
              ]} />
              {pages.pager(page.after)}
            </>
          )}
        </Answered>
      </Card>
      <Create tenant={tenant} done={asked.again} />
      {leaving !== null && (
        <Confirm title={`Delete the stream ${leaving}?`} yes="Delete it" onYes={() => void remove(leaving)} onNo={() => setLeaving(null)}>
          <p>All that it holds is deleted, for all readers. It is on record who did it.</p>
        </Confirm>
      )}
    </>
  );
}
