/** A live client: connect, subscribe and publish from this page. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Message, UserProperties } from "../mqtt";
import { MqttClient, RECEIPT } from "../mqtt_client";
import { Card, Field, Form, Table, Tag } from "../parts";
import { readProtobuf } from "../protobuf";

const KEPT = 500;
const REPEATS_MAX = 500;
const VIEWS = ["text", "JSON", "hex", "protobuf"] as const;
type View = (typeof VIEWS)[number];

interface Got {
  at: string;
  message: Message;
}

export function view(payload: Uint8Array, how: View): string {
  if (how === "hex") return [...payload.subarray(0, 4096)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  if (how === "protobuf") return readProtobuf(payload.subarray(0, 65_536));
  const text = new TextDecoder().decode(payload.subarray(0, 65_536));
  if (how === "text") return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return `not JSON: ${text}`;
  }
}

/** One property a line, as name=value. */
export function pairs(text: string): UserProperties {
  return text.split("\n").filter((line) => line.trim()).map((line) => {
    const cut = line.indexOf("=");
    return cut < 0 ? [line.trim(), ""] : [line.slice(0, cut).trim(), line.slice(cut + 1).trim()];
  });
}

/** Fill a template: {n} counts from 1, {now} is the time, {ms} the same as a number, {uuid} is drawn. */
export function filled(template: string, n: number): string {
  const values: Record<string, () => string> = {
    n: () => String(n), now: () => new Date().toISOString(), ms: () => String(Date.now()), uuid: () => crypto.randomUUID(),
  };
  return template.replace(/\{(n|now|ms|uuid)\}/g, (_, name: string) => values[name]!());
}

/** Bytes of text, or of hex with any spaces. */
export function payloadOf(text: string, isHex: boolean): Uint8Array {
  if (!isHex) return new TextEncoder().encode(text);
  const digits = text.replace(/\s+/g, "");
  if (!/^([0-9a-fA-F]{2})*$/.test(digits)) throw new RangeError("hex has two digits for each byte");
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

function address(): string {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  return localStorage.getItem("websocket") ?? `${scheme}://${location.hostname}:${scheme === "wss" ? 8084 : 8083}/mqtt`;
}

interface Live {
  state: "closed" | "opening" | "open";
  got: Got[];
  words: string[];
  /** Ids of messages in the log, as answers named them; the newest first. */
  receipts: string[];
  say: (word: string) => void;
  connect: (to: string, clientId: string, username: string, password: string) => void;
  client: MqttClient | null;
}

function useLive(): Live {
  const [state, setState] = useState<Live["state"]>("closed");
  const [got, setGot] = useState<Got[]>([]);
  const [words, setWords] = useState<string[]>([]);
  const [receipts, setReceipts] = useState<string[]>([]);
  const client = useRef<MqttClient | null>(null);
  const say = (word: string) => setWords((before) => [word, ...before].slice(0, 20));
  useEffect(() => () => client.current?.close(), []);
  const connect: Live["connect"] = (to, clientId, username, password) => {
    setState("opening");
    try {
      client.current = new MqttClient(to, { clientId, username, password, keepAliveSeconds: 30 }, {
        onOpen: () => { localStorage.setItem("websocket", to); setState("open"); say("connected"); },
        onMessage: (message) => setGot((before) => [{ at: new Date().toISOString().slice(11, 23), message }, ...before].slice(0, KEPT)),
        onWord: say,
        onReceipt: (message) => setReceipts((before) => [message, ...before].slice(0, 20)),
        onEnd: (why) => { setState("closed"); say(why); },
      });
    } catch (error) {
      setState("closed");
      say(`this address is none: ${String(error)}`);
    }
  };
  return { state, got, words, receipts, say, connect, client: client.current };
}

function Connect(props: { live: Live }): JSX.Element {
  const [to, setTo] = useState(address);
  const [clientId, setClientId] = useState(() => `console-${crypto.randomUUID().slice(0, 8)}`);
  const [username, setUsername] = useState("");
  const [password, setPassword] = useState("");
  const { live } = props;
  return (
    <Card title="Connection" wide>
      <Form label="Connect" onSubmit={() => (live.state === "open" ? live.client?.close() : live.connect(to, clientId, username, password))}>
        <Field name="Address" value={to} onChange={setTo} required />
        <Field name="Client id" value={clientId} onChange={setClientId} />
        <Field name="User name, if one is wanted" value={username} onChange={setUsername} />
        <Field name="Password or token" kind="password" value={password} onChange={setPassword} />
        <button class="main" disabled={live.state === "opening"}>{live.state === "open" ? "Disconnect" : "Connect"}</button>
      </Form>
      <p role="status" aria-live="polite"><Tag kind={live.state === "open" ? "good" : "plain"}>{live.state}</Tag> {live.words[0] ?? ""}</p>
    </Card>
  );
}

function Send(props: { live: Live }): JSX.Element {
  const [topic, setTopic] = useState("hello/console");
  const [text, setText] = useState("hello");
  const [qos, setQos] = useState("1");
  const [retain, setRetain] = useState(false);
  const [contentType, setContentType] = useState("");
  const [responseTopic, setResponseTopic] = useState("");
  const [correlation, setCorrelation] = useState("");
  const [expiry, setExpiry] = useState("");
  const [user, setUser] = useState("");
  const [spelled, setSpelled] = useState("text");
  const [times, setTimes] = useState("1");
  const [asks, setAsks] = useState(false);
  const send = () => {
    const properties = [...pairs(user), ...(asks ? [[RECEIPT, ""] as [string, string]] : [])];
    try {
      for (let n = 1; n <= Math.min(Number(times) || 1, REPEATS_MAX); n += 1) {
        props.live.client?.publish({
          topic: filled(topic, n), payload: payloadOf(filled(text, n), spelled === "hex"), qos: Number(qos), retain, packetId: 0, contentType,
          userProperties: properties, responseTopic, correlation: new TextEncoder().encode(correlation), expirySeconds: Number(expiry) || 0,
        });
      }
    } catch (error) {
      props.live.say(`not sent: ${error instanceof Error ? error.message : String(error)}`);
    }
  };
  return (
    <Card title="Publish" wide>
      <Form label="Publish by MQTT" onSubmit={send}>
        <Field name="Topic" value={topic} onChange={setTopic} required />
        <Field name="QoS" value={qos} onChange={setQos} options={["0", "1", "2"]} />
        <Field name="Times" kind="number" value={times} onChange={setTimes} />
        <Field name="Content type" value={contentType} onChange={setContentType} hint="application/json" />
        <Field name="Response topic" value={responseTopic} onChange={setResponseTopic} />
        <Field name="Correlation data" value={correlation} onChange={setCorrelation} />
        <Field name="Expires after seconds" kind="number" value={expiry} onChange={setExpiry} />
        <label class="check"><input type="checkbox" checked={retain} onChange={(event) => setRetain(event.currentTarget.checked)} /> retain</label>
        <label class="check"><input type="checkbox" checked={asks} onChange={(event) => setAsks(event.currentTarget.checked)} /> ask for a receipt</label>
        <Field name="Spelled as" value={spelled} onChange={setSpelled} options={["text", "hex"]} />
        <Field name="Payload" kind="area" value={text} onChange={setText} />
        <Field name="User properties, name=value a line" kind="area" value={user} onChange={setUser} />
        <button class="main" disabled={props.live.state !== "open"}>Publish</button>
      </Form>
      <p class="quiet">Topic and payload may be templates: {"{n}"} counts, {"{now}"} and {"{ms}"} are the time, {"{uuid}"} is drawn for each message.</p>
      {props.live.receipts.length > 0 && (
        <ul aria-label="Messages in the log, as answers named them">
          {props.live.receipts.map((each) => <li><a href={`#/deliveries?message=${each}`}>{each}</a></li>)}
        </ul>
      )}
    </Card>
  );
}

function Subscribe(props: { live: Live }): JSX.Element {
  const [filter, setFilter] = useState("hello/#");
  const [qos, setQos] = useState("1");
  const open = props.live.state === "open";
  return (
    <Card title="Subscribe" wide>
      <Form label="Subscribe" onSubmit={() => props.live.client?.subscribe(filter, Number(qos))}>
        <Field name="Topic filter" value={filter} onChange={setFilter} required />
        <Field name="At most QoS" value={qos} onChange={setQos} options={["0", "1", "2"]} />
        <button class="main" disabled={!open}>Subscribe</button>
        <button type="button" disabled={!open} onClick={() => props.live.client?.unsubscribe(filter)}>Unsubscribe</button>
      </Form>
    </Card>
  );
}

/** The properties that came with a message, in words. */
function told(message: Message): string {
  const { contentType, userProperties, responseTopic, correlation, expirySeconds } = message;
  const said = [
    contentType, ...userProperties.map(([name, value]) => `${name}=${value}`),
    responseTopic && `answer to ${responseTopic}`,
    correlation.length > 0 && `correlation ${new TextDecoder().decode(correlation)}`,
    expirySeconds > 0 && `expires in ${expirySeconds} s`,
  ];
  return said.filter(Boolean).join(", ") || "–";
}

export function LiveClient(): JSX.Element {
  const live = useLive();
  const [how, setHow] = useState<View>("text");
  return (
    <>
      <Connect live={live} />
      <Subscribe live={live} />
      <Send live={live} />
      <Card title="Messages" wide>
        <Field name="Show payloads as" value={how} onChange={(value) => setHow(value as View)} options={VIEWS} />
        <Table caption={`The newest ${KEPT} at most`} rows={live.got} empty="No message came yet: connect, and subscribe." columns={[
          { name: "At", of: (row) => row.at },
          { name: "Topic", of: (row) => <code>{row.message.topic}</code> },
          { name: "QoS", of: (row) => `${row.message.qos}${row.message.retain ? ", retained" : ""}`, number: true },
          { name: "Payload", of: (row) => <pre>{view(row.message.payload, how)}</pre> },
          { name: "Properties", of: (row) => told(row.message) },
        ]} />
        <ul class="quiet" aria-label="What the broker said">{live.words.map((word) => <li>{word}</li>)}</ul>
      </Card>
    </>
  );
}
