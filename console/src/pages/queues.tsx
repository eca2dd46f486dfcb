/** Queues of AMQP: what waits in them, what died, who receives; moved, revived and emptied. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { at, order, query, type Listed, type Wide } from "../api";
import { useAsked, useDoing, type Doing } from "../asking";
import { Answered, Card, Confirm, Fact, Field, Form, Outcome, Table, Tag, usePages } from "../parts";
import { bytes, count, moment, payloadText, span } from "../words";
import { Waits } from "./waits";
import { shell } from "./why";
import type { PageProps } from "../main";

interface QueueRow {
  name: string;
  partition: number;
  messages: number;
  dead_letters: number;
  bytes: Wide;
  oldest_ms: Wide | null;
}

interface QueueInfo extends QueueRow {
  leader: number | null;
  leader_admin: string;
  unsettled: number | null;
  receivers: number | null;
  messages_max: Wide;
  bytes_max: Wide;
  deliveries_max: Wide;
  ttl_ms: Wide;
  keeps_expired: boolean;
  expired: Wide;
  file_bytes: Wide;
}

interface Message {
  number: Wide;
  size: Wide;
  enqueued_ms: Wide;
  delivery_count: number;
  dead_because: string | null;
  subject: string | null;
  message_id: string | null;
  properties: [string, string][];
  body: { text?: string | null; base64?: string | null } | null;
}

type Ending = { order: "delete" | "purge" | "purge-dead"; name: string };

const QUESTIONS: Record<Ending["order"], { title: string; yes: string; words: string }> = {
  delete: { title: "Delete the queue", yes: "Delete it", words: "All that it holds is gone, dead letters too, and its links end." },
  purge: { title: "Purge the queue", yes: "Drop them", words: "All its messages are dropped; nobody receives them any more. Its dead letters stay." },
  "purge-dead": { title: "Purge the dead letters of", yes: "Drop them", words: "All its dead letters are dropped. Its messages stay." },
};

function bound(value: Wide, show: (value: Wide) => string): string {
  return Number(value) ? show(value) : "without a bound";
}

function Messages(props: { path: string; dead: boolean; revive: (numbers: Wide[]) => void }): JSX.Element {
  const pages = usePages();
  const asked = useAsked<Listed<Message>>(`${props.path}/messages` + query({ limit: 20, after: pages.after, dead: String(props.dead) }), 10_000);
  return (
    <Answered asked={asked}>
      {(page) => (
        <>
          <Table caption={props.dead ? "Dead letters, the oldest first" : "Messages, the oldest first; looking takes none"} rows={page.items}
            empty={props.dead ? "No dead letter." : "No message waits."} columns={[
              { name: "Number", of: (row) => row.number, number: true },
              { name: "Since", of: (row) => moment(row.enqueued_ms) },
              { name: "Deliveries", of: (row) => row.delivery_count, number: true },
              ...(props.dead ? [{ name: "Died of", of: (row: Message) => <Tag kind="bad">{row.dead_because ?? "unknown"}</Tag> }] : []),
              { name: "Subject", of: (row) => row.subject ?? "–" },
              { name: "Properties", of: (row) => row.properties.map(([name, value]) => `${name}=${value}`).join(", ") || "–" },
              { name: "Body", of: (row) => <pre>{payloadText(row.body)}</pre> },
              ...(props.dead ? [{ name: "Order", of: (row: Message) => <button aria-label={`Revive dead letter ${row.number}`} onClick={() => props.revive([row.number])}>Revive</button> }] : []),
            ]} />
          {pages.pager(page.items.length === 20 ? page.after : null)}
        </>
      )}
    </Answered>
  );
}

function Move(props: { path: string; dead: boolean; doing: Doing; done: () => void }): JSX.Element {
  const [target, setTarget] = useState("");
  const [most, setMost] = useState("1000");
  const what = props.dead ? "dead letters" : "messages";
  const move = async () => {
    const done = await props.doing.run(async () => {
      const told = await order<{ done: Wide }>("POST", `${props.path}/move`, { target, dead: props.dead, count: Number(most) });
      return `${count(told.done)} ${what} are in ${target} now.`;
    });
    if (done) props.done();
  };
  return (
    <Form label={`Move ${what}`} onSubmit={move}>
      <Field name="To the queue" value={target} onChange={setTarget} required />
      <Field name="At most" kind="number" value={most} onChange={setMost} required />
      <button class="main" disabled={props.doing.busy}>Move {what}</button>
    </Form>
  );
}

function Send(props: { path: string; doing: Doing; done: () => void }): JSX.Element {
  const [text, setText] = useState("");
  const [subject, setSubject] = useState("");
  const send = async () => {
    const done = await props.doing.run(async () => {
      await order("POST", `${props.path}/send`, { text, ...(subject && { subject }) });
      return "Accepted: a quorum has it on disk.";
    });
    if (done) props.done();
  };
  return (
    <Form label="Send a message" onSubmit={send}>
      <Field name="Text" value={text} onChange={setText} required />
      <Field name="Subject, if it has one" value={subject} onChange={setSubject} />
      <button class="main" disabled={props.doing.busy}>Send</button>
    </Form>
  );
}

function Facts(props: { info: QueueInfo }): JSX.Element {
  const { info } = props;
  const elsewhere = info.leader === null ? "nobody leads it" : `known to node ${info.leader}`;
  return (
    <dl>
      <Fact name="Messages">{count(info.messages)} ({bytes(info.bytes)})</Fact>
      <Fact name="Dead letters" bad={info.dead_letters > 0}>{count(info.dead_letters)}</Fact>
      <Fact name="Receivers" bad={info.receivers === 0 && info.messages > 0}>{info.receivers === null ? elsewhere : count(info.receivers)}</Fact>
      <Fact name="Given, not settled">{info.unsettled === null ? elsewhere : count(info.unsettled)}</Fact>
      <Fact name="Oldest message">{moment(info.oldest_ms)}</Fact>
      <Fact name="Leader" bad={info.leader === null}>{info.leader === null ? "none" : `node ${info.leader}`}</Fact>
      <Fact name="Messages at most">{bound(info.messages_max, count)}</Fact>
      <Fact name="Bytes at most">{bound(info.bytes_max, bytes)}</Fact>
      <Fact name="Deliveries at most">{bound(info.deliveries_max, count)}</Fact>
      <Fact name="Kept for">{Number(info.ttl_ms) ? span(Number(info.ttl_ms) / 1000) : "as its sender says"}</Fact>
      <Fact name="Expired and dropped">{count(info.expired)}</Fact>
      <Fact name="On disk">{bytes(info.file_bytes)}</Fact>
    </dl>
  );
}

function Queue(props: { tenant: string; name: string; why: boolean; onClose: () => void; end: (ending: Ending) => void; changed: () => void }): JSX.Element {
  const path = at`/v1/tenants/${props.tenant}/queues/${props.name}`;
  const asked = useAsked<QueueInfo>(path, 5_000);
  const [why, setWhy] = useState(props.why);
  const [dead, setDead] = useState(false);
  const [turn, setTurn] = useState(0);
  const doing = useDoing();
  const changed = () => {
    asked.again();
    setTurn((before) => before + 1);
    props.changed();
  };
  const revive = async (numbers: Wide[]) => {
    const done = await doing.run(async () => {
      const told = await order<{ done: Wide }>("POST", `${path}/revive`, { numbers: numbers.map(String) });
      return `${count(told.done)} of its dead letters are messages again.`;
    });
    if (done) changed();
  };
  return (
    <Card title={`Queue ${props.name}`} wide opened>
      <Answered asked={asked}>{(info) => <Facts info={info} />}</Answered>
      {why && <Waits path={`${path}/why`} nothing="is waited for." command={`quantum admin queues why ${props.tenant} ${shell(props.name)}`} />}
      <div class="row">
        <button aria-expanded={why} onClick={() => setWhy(!why)}>Why do they wait?</button>
        <button aria-pressed={!dead} onClick={() => setDead(false)}>Look at messages</button>
        <button aria-pressed={dead} onClick={() => setDead(true)}>Look at dead letters</button>
        <button onClick={props.onClose}>Close</button>
      </div>
      <Outcome doing={doing} />
      <Messages key={`${dead}${turn}`} path={path} dead={dead} revive={(numbers) => void revive(numbers)} />
      <Move key={`m${dead}`} path={path} dead={dead} doing={doing} done={changed} />
      {!dead && <Send path={path} doing={doing} done={changed} />}
      <div class="row">
        {dead && <button onClick={() => void revive([])}>Revive all dead letters</button>}
        <button class="danger" onClick={() => props.end({ order: dead ? "purge-dead" : "purge", name: props.name })}>{dead ? "Purge the dead letters…" : "Purge the messages…"}</button>
        <button class="danger" onClick={() => props.end({ order: "delete", name: props.name })}>Delete this queue…</button>
      </div>
    </Card>
  );
}

function Create(props: { tenant: string; done: () => void }): JSX.Element {
  const [name, setName] = useState("");
  const [deliveries, setDeliveries] = useState("10");
  const doing = useDoing();
  const create = async () => {
    const done = await doing.run(async () => {
      await order("POST", at`/v1/tenants/${props.tenant}/queues`, { name, deliveries_max: Number(deliveries) });
      return `The queue ${name} is there.`;
    });
    if (done) props.done();
  };
  return (
    <Card title="A new queue" wide>
      <Form label="Create a queue" onSubmit={create}>
        <Field name="Queue name" value={name} onChange={setName} required hint="orders" />
        <Field name="Deliveries at most (0: any number)" kind="number" value={deliveries} onChange={setDeliveries} required />
        <button class="main" disabled={doing.busy}>Create</button>
      </Form>
      <Outcome doing={doing} />
    </Card>
  );
}

export function Queues(props: PageProps): JSX.Element {
  const { tenant } = props;
  const pages = usePages();
  const [open, setOpen] = useState<{ name: string; why: boolean; turn: number } | null>(null);
  const [ending, setEnding] = useState<Ending | null>(null);
  const doing = useDoing();
  const asked = useAsked<Listed<QueueRow>>(tenant ? at`/v1/tenants/${tenant}/queues` + query({ after: pages.after, limit: 50 }) : null, 5_000);
  if (!tenant) return <p class="empty">Choose a tenant at the top of the page.</p>;
  const end = async ({ order: what, name }: Ending) => {
    setEnding(null);
    const done = await doing.run(async () => {
      const path = at`/v1/tenants/${tenant}/queues/${name}`;
      if (what === "delete") {
        await order("POST", `${path}/delete`);
        return `The queue ${name} is gone.`;
      }
      const told = await order<{ done: Wide }>("POST", `${path}/purge`, { dead: what === "purge-dead" });
      return `${count(told.done)} ${what === "purge" ? "messages" : "dead letters"} of ${name} are dropped.`;
    });
    if (!done) return;
    setOpen((before) => what === "delete" || !before ? null : { ...before, turn: before.turn + 1 });
    asked.again();
  };
  return (
    <>
      <Outcome doing={doing} />
      {open && (
        <Queue key={`${open.name}${open.why}${open.turn}`} tenant={tenant} name={open.name} why={open.why} onClose={() => setOpen(null)} end={setEnding} changed={asked.again} />
      )}
      <Card title="Queues" wide>
        <Answered asked={asked}>
          {(page) => (
            <>
              <Table caption={`Of ${tenant}, as this node's replicas have them`} rows={page.items} empty="There is no queue yet: create one below, or attach a link to one." columns={[
                { name: "Queue", of: (row) => <button onClick={() => setOpen({ name: row.name, why: false, turn: 0 })}>{row.name}</button> },
                { name: "Messages", of: (row) => count(row.messages), number: true },
                { name: "Dead letters", of: (row) => row.dead_letters ? <Tag kind="bad">{count(row.dead_letters)}</Tag> : "0", number: true },
                { name: "Bytes", of: (row) => bytes(row.bytes), number: true },
                { name: "Oldest", of: (row) => moment(row.oldest_ms) },
                { name: "Ask", of: (row) => row.messages || row.dead_letters ? <button aria-label={`Why do messages of ${row.name} wait?`} onClick={() => setOpen({ name: row.name, why: true, turn: 0 })}>Why?</button> : "" },
              ]} />
              {pages.pager(page.after)}
            </>
          )}
        </Answered>
      </Card>
      <Create tenant={tenant} done={asked.again} />
      {ending && (
        <Confirm title={`${QUESTIONS[ending.order].title} ${ending.name}?`} yes={QUESTIONS[ending.order].yes} onYes={() => void end(ending)} onNo={() => setEnding(null)}>
          <p>{QUESTIONS[ending.order].words} It is on record who did it.</p>
        </Confirm>
      )}
    </>
  );
}
