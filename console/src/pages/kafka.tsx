/** Kafka: topics with their partitions, consumer groups with their members and how far they are. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { at, order, query, type Listed, type Wide } from "../api";
import { useAsked, useDoing } from "../asking";
import { Answered, Card, Confirm, Fact, Field, Form, Outcome, Table, Tag, usePages } from "../parts";
import { bytes, count, moment } from "../words";
import { useWhy, Waits, WhyPartition } from "./waits";
import { shell } from "./why";
import type { PageProps } from "../main";

interface TopicRow {
  name: string;
  kind: "topic" | "capture";
  partition_count: number;
  records: Wide;
  file_bytes: Wide;
  created_ms: Wide;
}

interface PartitionRow {
  partition: number;
  group: number;
  leader: number | null;
  epoch: number;
  start: Wide;
  end: Wide;
  last_stable: Wide;
  file_bytes: Wide;
  closed: string;
}

interface TopicInfo extends TopicRow {
  partitions: PartitionRow[];
  configs: Record<string, string>;
}

interface GroupRow {
  name: string;
  state: string;
  kind: string;
  member_count: number;
  committed: number;
  lag: Wide;
  coordinator: number | null;
}

interface LagRow {
  topic: string;
  partition: number;
  leader: number | null;
  committed: Wide | null;
  end: Wide | null;
  lag: Wide | null;
  member_id: string | null;
}

interface GroupInfo extends GroupRow {
  generation: number;
  protocol: string;
  members: { member_id: string; instance_id: string | null; client_id: string; host: string; partitions: string[] }[];
  partitions: LagRow[];
}

type Ending = { what: "topic" | "group"; name: string };

function Leader(props: { node: number | null; closed?: string }): JSX.Element {
  if (props.node === null) return <Tag kind="bad">none</Tag>;
  return <>node {props.node}{props.closed && <> <Tag kind="bad">{props.closed}</Tag></>}</>;
}

function Lag(props: { lag: Wide | null }): JSX.Element {
  if (props.lag === null) return <>–</>;
  return Number(props.lag) ? <Tag kind="bad">{count(props.lag)}</Tag> : <Tag kind="good">0</Tag>;
}

function State(props: { state: string }): JSX.Element {
  return <Tag kind={props.state === "Stable" ? "good" : "plain"}>{props.state}</Tag>;
}

function Topic(props: { tenant: string; name: string; onClose: () => void; onDelete: () => void }): JSX.Element {
  const asked = useAsked<TopicInfo>(at`/v1/tenants/${props.tenant}/kafka/topics/${props.name}`, 5_000);
  const [why, askWhy] = useWhy<number>();
  const info = asked.answer;
  const held = info?.partitions.find((each) => each.partition === why);
  return (
    <Card title={`Topic ${props.name}`} wide opened>
      <Answered asked={asked}>
        {(topic) => (
          <>
            <Table caption="Partitions, as this node's replicas have them" rows={topic.partitions} empty="It has no partition." columns={[
              { name: "Partition", of: (row) => row.partition, number: true },
              { name: "Leader", of: (row) => <Leader node={row.leader} closed={row.closed} /> },
              { name: "Epoch", of: (row) => row.epoch, number: true },
              { name: "First offset", of: (row) => count(row.start), number: true },
              { name: "Next offset", of: (row) => count(row.end), number: true },
              { name: "In open transactions", of: (row) => count(Number(row.end) - Number(row.last_stable)), number: true },
              { name: "On disk", of: (row) => bytes(row.file_bytes), number: true },
              { name: "Ask", of: (row) => <button aria-expanded={why === row.partition} aria-label={`Why does partition ${row.partition} wait?`} onClick={() => askWhy(row.partition)}>Why?</button> },
            ]} />
            {held && <WhyPartition key={held.partition} group={held.group} of={`Partition ${held.partition}`} />}
            <h3>Configs that were set</h3>
            {Object.keys(topic.configs).length ? (
              <dl>{Object.entries(topic.configs).map(([name, value]) => <Fact name={name}>{value}</Fact>)}</dl>
            ) : <p class="empty">None: Kafka's defaults are in force.</p>}
          </>
        )}
      </Answered>
      <div class="row">
        <button onClick={props.onClose}>Close</button>
        {info?.kind === "topic" && <button class="danger" onClick={props.onDelete}>Delete this topic…</button>}
        {info?.kind === "capture" && <a href="#/streams">It captures MQTT's messages: see Streams</a>}
      </div>
    </Card>
  );
}

function Group(props: { tenant: string; name: string; why: boolean; onClose: () => void; onDelete: () => void }): JSX.Element {
  const path = at`/v1/tenants/${props.tenant}/kafka/groups/${props.name}`;
  const asked = useAsked<GroupInfo>(path, 5_000);
  const [why, setWhy] = useState(props.why);
  const members = asked.answer?.members ?? [];
  const client = (id: string | null) => members.find((each) => each.member_id === id)?.client_id ?? "nobody";
  return (
    <Card title={`Consumer group ${props.name}`} wide opened>
      <Answered asked={asked}>
        {(group) => (
          <>
            <dl>
              <Fact name="State"><State state={group.state} /></Fact>
              <Fact name="Behind by" bad={Number(group.lag) > 0}>{count(group.lag)}</Fact>
              <Fact name="Members" bad={!group.member_count && Number(group.lag) > 0}>{count(group.member_count)}</Fact>
              <Fact name="Generation">{group.generation}</Fact>
              <Fact name="Protocol">{group.kind}{group.protocol && `, ${group.protocol}`}</Fact>
              <Fact name="Coordinator" bad={group.coordinator === null}>{group.coordinator === null ? "none" : `node ${group.coordinator}`}</Fact>
            </dl>
            <Table caption="Lag by partition" rows={group.partitions} empty="It has committed nothing, and reads nothing." columns={[
              { name: "Topic", of: (row) => row.topic },
              { name: "Partition", of: (row) => row.partition, number: true },
              { name: "Lag", of: (row) => <Lag lag={row.lag} />, number: true },
              { name: "Committed", of: (row) => count(row.committed), number: true },
              { name: "Next offset", of: (row) => count(row.end), number: true },
              { name: "Leader", of: (row) => <Leader node={row.leader} /> },
              { name: "Read by", of: (row) => client(row.member_id) },
            ]} />
            <Table caption="Members" rows={group.members} empty="Nobody reads for it now." columns={[
              { name: "Client", of: (row) => row.client_id },
              { name: "From", of: (row) => row.host },
              { name: "Instance", of: (row) => row.instance_id ?? "–" },
              { name: "Has", of: (row) => row.partitions.join(", ") || "no partition" },
              { name: "Member", of: (row) => <code>{row.member_id}</code> },
            ]} />
          </>
        )}
      </Answered>
      {why && <Waits path={`${path}/why`} nothing="stands in its way." command={`quantum admin kafka-groups why ${props.tenant} ${shell(props.name)}`} />}
      <div class="row">
        <button aria-expanded={why} onClick={() => setWhy(!why)}>Why is it behind?</button>
        <button onClick={props.onClose}>Close</button>
        <button class="danger" onClick={props.onDelete}>Forget this group…</button>
      </div>
    </Card>
  );
}

function Topics(props: { tenant: string; open: (name: string) => void }): JSX.Element {
  const pages = usePages();
  const asked = useAsked<Listed<TopicRow>>(at`/v1/tenants/${props.tenant}/kafka/topics` + query({ after: pages.after, limit: 50 }), 10_000);
  return (
    <Card title="Topics" wide>
      <Answered asked={asked}>
        {(page) => (
          <>
            <Table caption={`Topics of ${props.tenant}`} rows={page.items} empty="There is no topic yet: create one below, or produce to one." columns={[
              { name: "Topic", of: (row) => <button onClick={() => props.open(row.name)}>{row.name}</button> },
              { name: "Kind", of: (row) => row.kind === "capture" ? "capture of MQTT" : "topic" },
              { name: "Partitions", of: (row) => count(row.partition_count), number: true },
              { name: "Records", of: (row) => count(row.records), number: true },
              { name: "On disk", of: (row) => bytes(row.file_bytes), number: true },
              { name: "Since", of: (row) => moment(row.created_ms) },
            ]} />
            {pages.pager(page.after)}
          </>
        )}
      </Answered>
    </Card>
  );
}

function Groups(props: { tenant: string; open: (name: string, why: boolean) => void }): JSX.Element {
  const pages = usePages();
  const asked = useAsked<Listed<GroupRow>>(at`/v1/tenants/${props.tenant}/kafka/groups` + query({ after: pages.after, limit: 50 }), 5_000);
  return (
    <Card title="Consumer groups" wide>
      <Answered asked={asked}>
        {(page) => (
          <>
            <Table caption={`Groups of ${props.tenant}, as this node's replicas have them`} rows={page.items} empty="No consumer group has committed or joined yet." columns={[
              { name: "Group", of: (row) => <button onClick={() => props.open(row.name, false)}>{row.name}</button> },
              { name: "State", of: (row) => <State state={row.state} /> },
              { name: "Members", of: (row) => count(row.member_count), number: true },
              { name: "Partitions", of: (row) => count(row.committed), number: true },
              { name: "Lag", of: (row) => <Lag lag={row.lag} />, number: true },
              { name: "Coordinator", of: (row) => <Leader node={row.coordinator} /> },
              { name: "Ask", of: (row) => Number(row.lag) || row.coordinator === null ? <button aria-label={`Why is ${row.name} behind?`} onClick={() => props.open(row.name, true)}>Why?</button> : "" },
            ]} />
            {pages.pager(page.after)}
          </>
        )}
      </Answered>
    </Card>
  );
}

function Create(props: { tenant: string; done: () => void }): JSX.Element {
  const [name, setName] = useState("");
  const [partitions, setPartitions] = useState("1");
  const [days, setDays] = useState("7");
  const doing = useDoing();
  const create = async () => {
    const done = await doing.run(async () => {
      const kept = Number(days) ? Math.round(Number(days) * 86_400_000) : -1;
      const body = { name, partition_count: Number(partitions), configs: { "retention.ms": String(kept) } };
      await order("POST", at`/v1/tenants/${props.tenant}/kafka/topics`, body);
      return `The topic ${name} is there.`;
    });
    if (done) props.done();
  };
  return (
    <Card title="A new topic" wide>
      <Form label="Create a topic" onSubmit={create}>
        <Field name="Topic name" value={name} onChange={setName} required hint="orders" />
        <Field name="Partitions" kind="number" value={partitions} onChange={setPartitions} required />
        <Field name="Kept for days (0: for ever)" kind="number" value={days} onChange={setDays} required />
        <button class="main" disabled={doing.busy}>Create</button>
      </Form>
      <Outcome doing={doing} />
    </Card>
  );
}

export function Kafka(props: PageProps): JSX.Element {
  const { tenant } = props;
  const [topic, setTopic] = useState<string | null>(null);
  const [group, setGroup] = useState<{ name: string; why: boolean } | null>(null);
  const [ending, setEnding] = useState<Ending | null>(null);
  const [turn, setTurn] = useState(0);
  const doing = useDoing();
  if (!tenant) return <p class="empty">Choose a tenant at the top of the page.</p>;
  const end = async ({ what, name }: Ending) => {
    setEnding(null);
    const done = await doing.run(async () => {
      const path = what === "topic" ? at`/v1/tenants/${tenant}/kafka/topics/${name}/delete` : at`/v1/tenants/${tenant}/kafka/groups/${name}/delete`;
      await order("POST", path);
      return what === "topic" ? `The topic ${name} is gone.` : `The group ${name} is forgotten.`;
    });
    if (!done) return;
    if (what === "topic") setTopic(null);
    else setGroup(null);
    setTurn(turn + 1);
  };
  return (
    <>
      <Outcome doing={doing} />
      {group && (
        <Group key={`${group.name}${group.why}`} tenant={tenant} name={group.name} why={group.why} onClose={() => setGroup(null)}
          onDelete={() => setEnding({ what: "group", name: group.name })} />
      )}
      {topic !== null && <Topic key={topic} tenant={tenant} name={topic} onClose={() => setTopic(null)} onDelete={() => setEnding({ what: "topic", name: topic })} />}
      <Groups key={`g${turn}`} tenant={tenant} open={(name, why) => setGroup({ name, why })} />
      <Topics key={`t${turn}`} tenant={tenant} open={setTopic} />
      <Create tenant={tenant} done={() => setTurn(turn + 1)} />
      {ending?.what === "topic" && (
        <Confirm title={`Delete the topic ${ending.name}?`} yes="Delete it" onYes={() => void end(ending)} onNo={() => setEnding(null)}>
          <p>All its records are deleted, for all readers; producers are refused. It is on record who did it.</p>
        </Confirm>
      )}
      {ending?.what === "group" && (
        <Confirm title={`Forget the group ${ending.name}?`} yes="Forget it" onYes={() => void end(ending)} onNo={() => setEnding(null)}>
          <p>What it committed is gone: its consumers begin anew as their auto.offset.reset says. A group with members is not forgotten.</p>
        </Confirm>
      )}
    </>
  );
}
