/** Nodes and groups: who leads what, in which term, and how far everybody is. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Listed, Wide } from "../api";
import { useAsked } from "../asking";
import { Answered, Card, Fact, Table, Tag } from "../parts";
import { bytes, count, span } from "../words";
import { Ages } from "./ages";
import { GROUP_QUESTIONS, WhyGroup } from "./why";

interface Member {
  replica_id: number;
  kind: string;
  lag_entries: number;
  lag_bytes: number;
  lag_ms: number;
  lag_class: string;
}

interface Group {
  partition_id: number;
  state: string;
  role: string;
  term: number;
  leader_id: number | null;
  voters: number[];
  commit_index: number;
  durable_index: number;
  applied_index: number;
  first_index: number;
  durability_mode: string;
  members: Member[];
  problem: string | null;
  membership_phase: string;
  snapshot_base_index: number;
  snapshot_kind: string;
}

interface Status {
  node_id: number;
  mode: string;
  connected_to: number[];
  nodes: { node_id: number; peer: string; admin: string }[];
  groups: Group[];
  control: { group: Group; cache_state: string } | null;
  disk: { filesystem: string; source: string; write_cache: string; io_writer_mode: string; findings: string[] } | null;
}

interface NodeRow {
  node_id: Wide;
  zone: string;
  address: string;
  state: string;
  version: string;
  report_state: string;
  report_age_ms: Wide | null;
  load: { groups_hosted: Wide; groups_led: Wide; disk_free_bytes: Wide } | null;
}

function ThisNode(props: { status: Status }): JSX.Element {
  const { status } = props;
  const others = status.nodes.filter((each) => each.node_id !== status.node_id);
  return (
    <Card title={`This node: ${status.node_id}`}>
      <dl>
        <Fact name="Does" bad={status.mode !== "Serving"}>{status.mode}</Fact>
        <Fact name="Connected to" bad={status.connected_to.length < others.length}>
          {others.length ? `${status.connected_to.length} of ${others.length}` : "it is alone"}
        </Fact>
        <Fact name="Control plane">{status.control?.cache_state ?? "none"}</Fact>
        <Fact name="Disk" bad={!!status.disk?.findings.length}>{status.disk ? `${status.disk.filesystem} on ${status.disk.source}` : "–"}</Fact>
        <Fact name="Writes by">{status.disk?.io_writer_mode ?? "–"}</Fact>
      </dl>
      {status.disk?.findings.map((each) => <p><Tag kind="bad">disk</Tag> {each}</p>)}
      {others.length > 0 && (
        <p>Consoles of the others: {others.map((each) => <><a href={`${location.protocol}//${each.admin}/#/nodes`}>node {each.node_id}</a>{" "}</>)}</p>
      )}
    </Card>
  );
}

function Followers(props: { group: Group }): JSX.Element {
  if (!props.group.members.length) return <span class="quiet">–</span>;
  return (
    <>
      {props.group.members.map((each) => (
        <div>
          node {each.replica_id}: {each.lag_entries ? `${count(each.lag_entries)} entries, ${bytes(each.lag_bytes)}, ${span(each.lag_ms / 1000)}` : "level"}
          {each.lag_class !== "None" && <> <Tag kind="bad">{each.lag_class}</Tag></>}
        </div>
      ))}
    </>
  );
}

function Groups(props: { groups: Group[]; me: number }): JSX.Element {
  const [chosen, choose] = useState<number | null>(null);
  return (
    <Card title="Groups on this node" wide>
      <Table caption="Each group is one log, replicated" rows={props.groups} empty="No group is hosted here." columns={[
        { name: "Group", of: (row) => row.partition_id, number: true },
        { name: "State", of: (row) => <Tag kind={row.state === "Running" ? "good" : "bad"}>{row.state}</Tag> },
        { name: "Leader", of: (row) => row.leader_id == null ? <Tag kind="bad">none</Tag> : row.leader_id === props.me ? "this node" : `node ${row.leader_id}` },
        { name: "Term", of: (row) => row.term, number: true },
        { name: "Voters", of: (row) => row.voters.join(", ") },
        { name: "Committed", of: (row) => count(row.commit_index), number: true },
        { name: "Durable here", of: (row) => count(row.durable_index), number: true },
        { name: "Applied", of: (row) => count(row.applied_index), number: true },
        { name: "Followers", of: (row) => <Followers group={row} /> },
        { name: "Snapshot", of: (row) => row.snapshot_kind ? `${row.snapshot_kind} up to ${count(row.snapshot_base_index)}` : "none yet" },
        { name: "Mode", of: (row) => row.durability_mode },
        { name: "Ask", of: (row) => <button aria-expanded={chosen === row.partition_id} onClick={() => choose(chosen === row.partition_id ? null : row.partition_id)}>Why?</button> },
      ]} />
      {chosen !== null && (
        <div role="region" aria-label={`Group ${chosen} explained`}>
          <h2>Group {chosen}</h2>
          {GROUP_QUESTIONS.map((question) => <WhyGroup key={`${chosen}${question}`} group={chosen} question={question} />)}
        </div>
      )}
    </Card>
  );
}

export function Nodes(): JSX.Element {
  const status = useAsked<Status>("/status", 5_000);
  const nodes = useAsked<Listed<NodeRow>>("/v1/nodes?limit=1000&linearizable=false", 10_000);
  return (
    <>
      <Answered asked={status}>
        {(answer) => (
          <>
            <div class="grid"><ThisNode status={answer} /><Ages /></div>
            <Groups me={answer.node_id} groups={[...answer.groups, ...(answer.control ? [answer.control.group] : [])]} />
          </>
        )}
      </Answered>
      <Card title="Nodes of the cluster" wide>
        <Answered asked={nodes}>
          {(answer) => (
            <Table caption="As the control plane knows them" rows={answer.items} empty="No node is registered." columns={[
              { name: "Node", of: (row) => row.node_id, number: true },
              { name: "Zone", of: (row) => row.zone },
              { name: "State", of: (row) => <Tag kind={row.state === "Active" ? "good" : "plain"}>{row.state}</Tag> },
              { name: "Its word", of: (row) => <Tag kind={row.report_state === "Fresh" ? "good" : "bad"}>{row.report_state}, {span(Number(row.report_age_ms) / 1000)} old</Tag> },
              { name: "Leads", of: (row) => row.load ? `${row.load.groups_led} of ${row.load.groups_hosted}` : "–" },
              { name: "Disk left", of: (row) => bytes(row.load?.disk_free_bytes), number: true },
              { name: "Version", of: (row) => row.version },
            ]} />
          )}
        </Answered>
      </Card>
    </>
  );
}
