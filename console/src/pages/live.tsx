/** A live client: connect, subscribe and publish from this page. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Message, UserProperties } from "../mqtt";
import { MqttClient } from "../mqtt_client";
import { Card, Field, Form, Table, Tag } from "../parts";

const KEPT = 500;
const VIEWS = ["text", "JSON", "hex"] as const;
type View = (typeof VIEWS)[number];

interface Got {
  at: string;
  message: Message;
}

export function view(payload: Uint8Array, how: View): string {
  if (how === "hex") return [...payload.subarray(0, 4096)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
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

function address(): string {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  return localStorage.getItem("websocket") ?? `${scheme}://${location.hostname}:${scheme === "wss" ? 8084 : 8083}/mqtt`;
}

interface Live {
  state: "closed" | "opening" | "open";
  got: Got[];
  words: string[];
  connect: (to: string, clientId: string, username: string, password: string) => void;
  client: MqttClient | null;
}

function useLive(): Live {
  const [state, setState] = useState<Live["state"]>("closed");
  const [got, setGot] = useState<Got[]>([]);
  const [words, setWords] = useState<string[]>([]);
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
        onEnd: (why) => { setState("closed"); say(why); },
      });
    } catch (error) {
      setState("closed");
      say(`this address is none: ${String(error)}`);
    }
  };
  return { state, got, words, connect, client: client.current };
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
  const [user, setUser] = useState("");
  const send = () => {
    const payload = new TextEncoder().encode(text);
    props.live.client?.publish({ topic, payload, qos: Number(qos), retain, packetId: 0, contentType, userProperties: pairs(user) });
  };
  return (
    <Card title="Publish" wide>
      <Form label="Publish by MQTT" onSubmit={send}>
        <Field name="Topic" value={topic} onChange={setTopic} required />
        <Field name="QoS" value={qos} onChange={setQos} options={["0", "1"]} />
        <Field name="Content type" value={contentType} onChange={setContentType} hint="application/json" />
        <label class="check"><input type="checkbox" checked={retain} onChange={(event) => setRetain(event.currentTarget.checked)} /> retain</label>
        <Field name="Payload" kind="area" value={text} onChange={setText} />
        <Field name="User properties, name=value a line" kind="area" value={user} onChange={setUser} />
        <button class="main" disabled={props.live.state !== "open"}>Publish</button>
      </Form>
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
        <Field name="At most QoS" value={qos} onChange={setQos} options={["0", "1"]} />
        <button class="main" disabled={!open}>Subscribe</button>
        <button type="button" disabled={!open} onClick={() => props.live.client?.unsubscribe(filter)}>Unsubscribe</button>
      </Form>
    </Card>
  );
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
          { name: "Properties", of: (row) => [row.message.contentType, ...row.message.userProperties.map(([name, value]) => `${name}=${value}`)].filter(Boolean).join(", ") || "–" },
        ]} />
        <ul class="quiet" aria-label="What the broker said">{live.words.map((word) => <li>{word}</li>)}</ul>
      </Card>
    </>
  );
}
