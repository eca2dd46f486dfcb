/** Deliveries: would a message come, where has one been, and the proof that it was on disks. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { at, look, lookText, query, type Wide } from "../api";
import { useAsked, useDoing } from "../asking";
import { Answered, Card, Field, Form, Outcome, Table, Tag } from "../parts";
import { digestMessage, readReceipt, verifyReceipt, type TrustedKey, type Verdict } from "../receipts";
import { shell } from "./why";
import type { PageProps } from "../main";

interface DeliveryView {
  delivered: "yes" | "queued" | "perhaps" | "no";
  sentence: string;
  rule: string;
  command: string;
  principal: string;
  topic_partition: number;
  session_partition: number;
  answered_by: number;
  captures: string[];
  steps: { rule: string; passes: boolean; sentence: string; command: string }[];
}

interface TrailStep {
  at_ms: Wide;
  what: string;
  partition: number;
  group: number;
  index: Wide;
  term: Wide;
  sentence: string;
  client_id: string;
}

interface MessageTrail {
  id: string;
  topic: string;
  publisher: string;
  qos: number;
  bytes: number;
  message_sha256: string;
  steps: TrailStep[];
  unknown: string[];
}

interface Asking {
  topic: string;
  client: string;
  qos: string;
  publisher: string;
}

function Delivery(props: { tenant: string; asking: Asking }): JSX.Element {
  const { topic, client, qos, publisher } = props.asking;
  const asked = useAsked<DeliveryView>(
    at`/v1/tenants/${props.tenant}/explain/delivery` + query({ topic, client_id: client, qos, publisher }),
  );
  const more = publisher ? ` --publisher ${shell(publisher)}` : "";
  return (
    <Answered asked={asked}>
      {(found) => (
        <>
          <div class={found.delivered === "no" ? "cause wrong" : "cause"}>
            <p><Tag kind={found.delivered === "no" ? "bad" : "good"}>{found.delivered}</Tag> <strong>{found.sentence}</strong></p>
            {found.rule && <p>Rule: <code>{found.rule}</code>{found.command && <>. What to do: {found.command}</>}</p>}
            {found.captures.length > 0 && <p>Kept by the streams {found.captures.join(", ")}.</p>}
            <p class="quiet">
              The topic is partition {found.topic_partition}'s, the session partition {found.session_partition}'s; node {found.answered_by} looked.
              The same on a shell: <code>quantum explain delivery {shell(topic)} {shell(client)} --qos {qos}{more} --tenant {props.tenant}</code>
            </p>
          </div>
          <Table caption="What was looked at, in the order in which a message meets it" empty="Nothing." rows={found.steps}
            columns={[
              { name: "Rule", of: (row) => row.rule },
              { name: "Verdict", of: (row) => <Tag kind={row.passes ? "good" : "bad"}>{row.passes ? "passes" : "stops it"}</Tag> },
              { name: "What it says", of: (row) => row.sentence },
            ]} />
        </>
      )}
    </Answered>
  );
}

function when(ms: Wide): string {
  return new Date(Number(ms)).toISOString().replace("T", " ").replace("Z", "");
}

function Trail(props: { tenant: string; asking: Record<string, string> }): JSX.Element {
  const asked = useAsked<MessageTrail>(at`/v1/tenants/${props.tenant}/explain/message` + query(props.asking));
  return (
    <Answered asked={asked}>
      {(found) => (
        <>
          <p><code>{found.id}</code>: {found.topic}, {found.bytes} bytes at QoS {found.qos}, published by {found.publisher || "nobody known"}.</p>
          <Table caption="Its way, from the logs (times of the entries, UTC)" empty="The logs tell nothing." rows={found.steps}
            columns={[
              { name: "Time", of: (row) => when(row.at_ms) },
              { name: "What", of: (row) => row.what },
              { name: "Client", of: (row) => row.client_id },
              { name: "What it says", of: (row) => row.sentence },
              { name: "Partition", of: (row) => row.partition, number: true },
              { name: "Group", of: (row) => row.group, number: true },
              { name: "Entry", of: (row) => row.index, number: true },
              { name: "Term", of: (row) => row.term, number: true },
            ]} />
          {found.unknown.map((each) => <p class="quiet">Not told: {each}.</p>)}
        </>
      )}
    </Answered>
  );
}

function Judged(props: { verdict: Verdict; id: string }): JSX.Element {
  const { verdict } = props;
  return (
    <div class={verdict.proven ? "cause" : "cause wrong"}>
      <p>
        <Tag kind={verdict.proven ? "good" : "bad"}>{verdict.proven ? "proven" : "not proven"}</Tag>{" "}
        <strong>{props.id}: signed by the nodes {verdict.signers.join(", ") || "none"}, of the voters {verdict.voters.join(", ") || "none"}</strong>
      </p>
      {verdict.faults.map((each) => <p>{each}</p>)}
    </div>
  );
}

/** Get a receipt, or paste one; it is judged in this page. */
function Receipts(props: { tenant: string; id: string }): JSX.Element {
  const [id, setId] = useState(props.id);
  const [text, setText] = useState("");
  const [keys, setKeys] = useState("");
  const [topic, setTopic] = useState("");
  const [payload, setPayload] = useState("");
  const [judged, judge] = useState<{ verdict: Verdict; id: string } | null>(null);
  const doing = useDoing();
  const get = () => doing.run(async () => {
    judge(null);
    setText(JSON.stringify(JSON.parse(await lookText(at`/v1/tenants/${props.tenant}/receipts/${id.trim()}`)), null, 2));
    const listed = (await look<{ keys: TrustedKey[] }>("/v1/keys?linearizable=false")).keys;
    setKeys(JSON.stringify({ keys: listed.filter((each) => each.purpose === "SnapshotManifestKey") }, null, 2));
    return "The receipt and the nodes' public keys are below. Keep both where this cluster cannot change them.";
  });
  const verify = () => doing.run(async () => {
    judge(null);
    const receipt = readReceipt(text);
    const digest = topic ? await digestMessage(topic, new TextEncoder().encode(payload)) : "";
    judge({ verdict: await verifyReceipt(receipt, (JSON.parse(keys) as { keys: TrustedKey[] }).keys, digest), id: receipt.id });
    return "Verified in this page; no node was asked.";
  });
  return (
    <>
      <Form label="Get a receipt" onSubmit={get}>
        <Field name="Message id, as the acknowledgement named it" value={id} onChange={setId} required />
        <button class="main">Let the replicas sign</button>
      </Form>
      <Form label="Verify a receipt" onSubmit={verify}>
        <Field name="Receipt" kind="area" value={text} onChange={setText} required />
        <Field name="Public keys of the nodes" kind="area" value={keys} onChange={setKeys} required />
        <Field name="Topic, to compare the message" value={topic} onChange={setTopic} />
        <Field name="Payload, as text" value={payload} onChange={setPayload} />
        <button class="main">Verify</button>
      </Form>
      <Outcome doing={doing} />
      <div aria-live="polite">{judged && <Judged verdict={judged.verdict} id={judged.id} />}</div>
    </>
  );
}

export function Deliveries(props: PageProps): JSX.Element {
  const [topic, setTopic] = useState(props.asked.get("topic") ?? "");
  const [client, setClient] = useState(props.asked.get("client") ?? "");
  const [qos, setQos] = useState("1");
  const [publisher, setPublisher] = useState("");
  const [asking, ask] = useState<Asking | null>(topic && client ? { topic, client, qos, publisher } : null);
  const [message, setMessage] = useState(props.asked.get("message") ?? "");
  const [stream, setStream] = useState("");
  const [partition, setPartition] = useState("0");
  const [offset, setOffset] = useState("0");
  const [reader, setReader] = useState("");
  const [trail, follow] = useState<Record<string, string> | null>(message ? { message } : null);
  return (
    <>
      <Card title="Would a message come?">
        <Form label="Ask about a delivery" onSubmit={() => ask({ topic, client, qos, publisher })}>
          <Field name="Topic" value={topic} onChange={setTopic} required />
          <Field name="Client id" value={client} onChange={setClient} required />
          <Field name="QoS" value={qos} onChange={setQos} options={["0", "1", "2"]} />
          <Field name="Publisher, if it matters" value={publisher} onChange={setPublisher} />
          <button class="main">Ask whether it comes</button>
        </Form>
      </Card>
      <Card title="Where has a message been?">
        <Form label="Follow a past message"
          onSubmit={() => follow(message ? { message, client_id: reader } : { stream, partition, offset, client_id: reader })}>
          <Field name="Message id" value={message} onChange={setMessage} hint="group-entry-digest" />
          <Field name="or: stream" value={stream} onChange={setStream} />
          <Field name="Partition" kind="number" value={partition} onChange={setPartition} />
          <Field name="Offset" kind="number" value={offset} onChange={setOffset} />
          <Field name="For which client, if for one" value={reader} onChange={setReader} />
          <button class="main">Read the logs</button>
        </Form>
      </Card>
      {asking && <Card title="The delivery" wide><div aria-live="polite" key={JSON.stringify(asking)}><Delivery tenant={props.tenant} asking={asking} /></div></Card>}
      {trail && <Card title="The message's way" wide><div aria-live="polite" key={JSON.stringify(trail)}><Trail tenant={props.tenant} asking={trail} /></div></Card>}
      <Card title="A receipt: proof that a quorum had it on disk" wide>
        <Receipts tenant={props.tenant} id={message} />
      </Card>
    </>
  );
}
