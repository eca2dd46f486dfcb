/** Topics and retained messages: as a tree, with their payloads; and a message of one's own. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { at, order, query, type Listed } from "../api";
import { useAsked, useDoing } from "../asking";
import { Answered, Card, Field, Form, Outcome, Table, usePages } from "../parts";
import { bytes, count, payloadText } from "../words";
import type { PageProps } from "../main";

interface RetainedRow {
  topic: string;
  qos: number;
  bytes: number;
  payload: { text?: string | null; base64?: string | null };
}

interface Branch {
  below: Map<string, Branch>;
  message: RetainedRow | null;
  messages: number;
}

export function grow(rows: RetainedRow[]): Branch {
  const root: Branch = { below: new Map(), message: null, messages: 0 };
  for (const row of rows) {
    let here = root;
    here.messages += 1;
    for (const level of row.topic.split("/")) {
      const next = here.below.get(level) ?? { below: new Map(), message: null, messages: 0 };
      here.below.set(level, next);
      here = next;
      here.messages += 1;
    }
    here.message = row;
  }
  return root;
}

function Leaf(props: { row: RetainedRow }): JSX.Element {
  return <pre>{payloadText(props.row.payload)}{"\n"}<span class="quiet">QoS {props.row.qos}, {bytes(props.row.bytes)}</span></pre>;
}

function Tree(props: { branch: Branch; open: boolean }): JSX.Element {
  return (
    <>
      {[...props.branch.below].map(([name, each]) => (
        <details open={props.open && props.branch.below.size === 1}>
          <summary>{name || "(empty)"} {each.below.size > 0 && <span class="quiet">{count(each.messages)}</span>}</summary>
          {each.message && <Leaf row={each.message} />}
          <Tree branch={each} open={props.open} />
        </details>
      ))}
    </>
  );
}

function Retained(props: { tenant: string; filter: string }): JSX.Element {
  const pages = usePages();
  const path = at`/v1/tenants/${props.tenant}/retained` + query({ filter: props.filter, after: pages.after, limit: 500 });
  const asked = useAsked<Listed<RetainedRow>>(path);
  return (
    <Card title="Retained messages" wide>
      <Answered asked={asked}>
        {(page) => (
          <>
            {page.items.length ? <Tree branch={grow(page.items)} open /> : <p class="empty">Nothing that is sought is retained.</p>}
            <div class="row"><button onClick={asked.again}>Look again</button></div>
            {pages.pager(page.after)}
          </>
        )}
      </Answered>
    </Card>
  );
}

function Subscribed(props: { tenant: string; filter: string }): JSX.Element {
  const pages = usePages();
  const path = at`/v1/tenants/${props.tenant}/topics` + query({ filter: props.filter, after: pages.after, limit: 100 });
  const asked = useAsked<Listed<{ filter: string; subscribers: number }>>(path, 15_000);
  return (
    <Card title="Filters that are subscribed to" wide>
      <Answered asked={asked}>
        {(page) => (
          <>
            <Table caption="With how many subscribers" rows={page.items} empty="Nobody subscribes to what is sought." columns={[
              { name: "Filter", of: (row) => <code>{row.filter}</code> },
              { name: "Subscribers", of: (row) => count(row.subscribers), number: true },
            ]} />
            {pages.pager(page.after)}
          </>
        )}
      </Answered>
    </Card>
  );
}

function Publish(props: { tenant: string; done: () => void }): JSX.Element {
  const [topic, setTopic] = useState("");
  const [text, setText] = useState("");
  const [qos, setQos] = useState("1");
  const [retain, setRetain] = useState(false);
  const doing = useDoing();
  const send = async () => {
    const done = await doing.run(async () => {
      const body = { topic, text, qos: Number(qos), retain };
      const answer = await order<{ acknowledged: boolean }>("POST", at`/v1/tenants/${props.tenant}/publish`, body);
      return answer.acknowledged ? "Acknowledged: a quorum has it on disk." : "Sent; at QoS 0 nobody acknowledges.";
    });
    if (done) props.done();
  };
  return (
    <Card title="Publish" wide>
      <Form label="Publish a message" onSubmit={send}>
        <Field name="To topic" value={topic} onChange={setTopic} required />
        <Field name="Quality of service" value={qos} onChange={setQos} options={["0", "1", "2"]} />
        <label class="check"><input type="checkbox" checked={retain} onChange={(event) => setRetain(event.currentTarget.checked)} /> retain</label>
        <Field name="Payload" kind="area" value={text} onChange={setText} />
        <button class="main" disabled={doing.busy}>Publish</button>
      </Form>
      <Outcome doing={doing} />
    </Card>
  );
}

export function Topics(props: PageProps): JSX.Element {
  const [typed, setTyped] = useState("");
  const [filter, setFilter] = useState("");
  const [turn, setTurn] = useState(0);
  if (!props.tenant) return <p class="empty">Choose a tenant at the top of the page.</p>;
  return (
    <>
      <Form label="Search topics" onSubmit={() => setFilter(typed)}>
        <Field name="Topic filter" kind="search" value={typed} onChange={setTyped} hint="lamp/#" />
        <button class="main">Search</button>
      </Form>
      <Retained key={`r${filter}@${turn}`} tenant={props.tenant} filter={filter} />
      <Subscribed key={`s${filter}`} tenant={props.tenant} filter={filter} />
      <Publish tenant={props.tenant} done={() => setTurn((before) => before + 1)} />
    </>
  );
}
