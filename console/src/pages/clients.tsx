/** Clients and sessions: found by a part of their id, looked into, and ended after a question. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { at, order, query, type Listed, type Wide } from "../api";
import { useAsked, useDoing } from "../asking";
import { Answered, Card, Confirm, Fact, Field, Form, Outcome, Table, Tag, usePages } from "../parts";
import { bytes, count, moment, span } from "../words";
import { WhyClient } from "./why";
import type { PageProps } from "../main";

interface SessionRow {
  client_id: string;
  partition: number;
  connected: boolean;
  expiry_seconds: number;
  subscriptions: number;
  queued: number;
  in_flight: number;
  queued_bytes: Wide;
  full: boolean;
}

interface SessionView extends SessionRow {
  filters: { filter: string; qos: number; identifier: number | null }[];
  has_will: boolean;
  unreleased: number;
  ends_at_ms: Wide | null;
}

interface ClientRow {
  client_id: string;
  identity: string | null;
  transport: string;
  address: string;
  protocol: string;
  keep_alive_seconds: number;
  queued_bytes: Wide;
}

interface ClientPage extends Listed<ClientRow> {
  elsewhere: { partition: number; leader: number | null }[];
}

function Session(props: { tenant: string; client: string; onKick: () => void; onClose: () => void }): JSX.Element {
  const asked = useAsked<SessionView>(at`/v1/tenants/${props.tenant}/sessions/${props.client}`, 5_000);
  const [why, setWhy] = useState(false);
  return (
    <Card title={`Session of ${props.client}`} wide opened>
      <Answered asked={asked}>
        {(view) => (
          <>
            <dl>
              <Fact name="Client">{view.connected ? "connected" : "away"}</Fact>
              <Fact name="Queued">{count(view.queued)} ({bytes(view.queued_bytes)})</Fact>
              <Fact name="In flight">{count(view.in_flight)}</Fact>
              <Fact name="Unreleased (QoS 2)">{count(view.unreleased)}</Fact>
              <Fact name="Queue" bad={view.full}>{view.full ? "full" : "has room"}</Fact>
              <Fact name="Will">{view.has_will ? "yes" : "none"}</Fact>
              <Fact name="Expires after">{view.expiry_seconds === 4294967295 ? "never" : span(view.expiry_seconds)}</Fact>
              <Fact name="Ends at">{moment(view.ends_at_ms)}</Fact>
              <Fact name="Partition">{view.partition}</Fact>
            </dl>
            <Table caption="Subscriptions" rows={view.filters} empty="It subscribes to nothing." columns={[
              { name: "Filter", of: (row) => <code>{row.filter}</code> },
              { name: "QoS", of: (row) => row.qos, number: true },
              { name: "Identifier", of: (row) => row.identifier ?? "–", number: true },
            ]} />
          </>
        )}
      </Answered>
      {why && <WhyClient tenant={props.tenant} client={props.client} />}
      <div class="row">
        <button aria-expanded={why} onClick={() => setWhy(!why)}>Why does it wait?</button>
        <button class="danger" onClick={props.onKick}>End this session…</button>
        <button onClick={props.onClose}>Close</button>
      </div>
    </Card>
  );
}

function Connected(props: { tenant: string; contains: string; open: (client: string) => void }): JSX.Element {
  const pages = usePages();
  const path = at`/v1/tenants/${props.tenant}/clients` + query({ contains: props.contains, after: pages.after, limit: 50 });
  const asked = useAsked<ClientPage>(path, 10_000);
  return (
    <Card title="Connected clients" wide>
      <Answered asked={asked}>
        {(page) => (
          <>
            {page.elsewhere.length > 0 && (
              <p class="quiet">Others are known to {[...new Set(page.elsewhere.map((each) => each.leader == null ? "nobody yet" : `node ${each.leader}`))].join(", ")}: see the console there.</p>
            )}
            <Table caption="Of partitions that this node leads" rows={page.items} empty="No client that is sought is connected here." columns={[
              { name: "Client", of: (row) => <button onClick={() => props.open(row.client_id)}>{row.client_id}</button> },
              { name: "Known as", of: (row) => row.identity ?? "–" },
              { name: "Over", of: (row) => `${row.protocol}, ${row.transport}` },
              { name: "From", of: (row) => row.address },
              { name: "Keep alive", of: (row) => span(row.keep_alive_seconds), number: true },
              { name: "To be sent", of: (row) => bytes(row.queued_bytes), number: true },
            ]} />
            {pages.pager(page.after)}
          </>
        )}
      </Answered>
    </Card>
  );
}

function Sessions(props: { tenant: string; contains: string; open: (client: string) => void; kick: (client: string) => void }): JSX.Element {
  const pages = usePages();
  const path = at`/v1/tenants/${props.tenant}/sessions` + query({ contains: props.contains, after: pages.after, limit: 50 });
  const asked = useAsked<Listed<SessionRow>>(path, 10_000);
  return (
    <Card title="Sessions" wide>
      <Answered asked={asked}>
        {(page) => (
          <>
            <Table caption="Also of clients that are away" rows={page.items} empty="No session that is sought." columns={[
              { name: "Client", of: (row) => <button onClick={() => props.open(row.client_id)}>{row.client_id}</button> },
              { name: "State", of: (row) => row.connected ? <Tag kind="good">connected</Tag> : <Tag kind="plain">away</Tag> },
              { name: "Subscriptions", of: (row) => count(row.subscriptions), number: true },
              { name: "Queued", of: (row) => <>{count(row.queued)}{row.full && <> <Tag kind="bad">full</Tag></>}</>, number: true },
              { name: "In flight", of: (row) => count(row.in_flight), number: true },
              { name: "Order", of: (row) => <button class="danger" aria-label={`End the session of ${row.client_id}`} onClick={() => props.kick(row.client_id)}>End…</button> },
            ]} />
            {pages.pager(page.after)}
          </>
        )}
      </Answered>
    </Card>
  );
}

export function Clients(props: PageProps): JSX.Element {
  const { tenant } = props;
  const [typed, setTyped] = useState("");
  const [contains, setContains] = useState("");
  const [open, setOpen] = useState<string | null>(props.asked.get("client"));
  const [leaving, setLeaving] = useState<string | null>(null);
  const [turn, setTurn] = useState(0);
  const doing = useDoing();
  if (!tenant) return <p class="empty">Choose a tenant at the top of the page.</p>;
  const kick = async (client: string) => {
    setLeaving(null);
    const done = await doing.run(async () => {
      await order("POST", at`/v1/tenants/${tenant}/sessions/${client}/kick`);
      return `The session of ${client} has ended.`;
    });
    if (done) {
      setOpen(null);
      setTurn(turn + 1);
    }
  };
  return (
    <>
      <Form label="Search clients" onSubmit={() => setContains(typed)}>
        <Field name="Client id contains" kind="search" value={typed} onChange={setTyped} />
        <button class="main">Search</button>
      </Form>
      <Outcome doing={doing} />
      {open !== null && <Session key={open} tenant={tenant} client={open} onKick={() => setLeaving(open)} onClose={() => setOpen(null)} />}
      <Sessions key={`s${contains}@${turn}`} tenant={tenant} contains={contains} open={setOpen} kick={setLeaving} />
      <Connected key={`c${contains}@${turn}`} tenant={tenant} contains={contains} open={setOpen} />
      {leaving !== null && (
        <Confirm title={`End the session of ${leaving}?`} yes="End it" onYes={() => void kick(leaving)} onNo={() => setLeaving(null)}>
          <p>Its client is disconnected; its subscriptions and what is queued for it are gone. It is on record who did it.</p>
        </Confirm>
      )}
    </>
  );
}
