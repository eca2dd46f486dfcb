/** Tenants: their quotas as bars, as far as this node knows what is used. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { at, order, type Listed, type Wide } from "../api";
import { useAsked, useDoing } from "../asking";
import { Answered, Bar, Card, Field, Form, Outcome, Table, Tag, usePages } from "../parts";
import { bytes, count, moment } from "../words";
import type { PageProps } from "../main";

interface TenantRow {
  tenant_id: string;
  sni: string;
  tier: string;
  suspended: boolean;
  created_at: Wide;
}

interface TenantState {
  quotas: Record<string, Wide>;
  routing: { partitions: Wide[]; routing_epoch: Wide } | null;
}

interface Used {
  partitions: { tenant: string; connected: number; filters: number; queued: number; sessions: number; retained: number }[];
}

const BOUNDS: [string, string, (n: number) => string][] = [
  ["connections_max", "Connections", count],
  ["subscription_filters_max", "Subscription filters", count],
  ["shared_groups_max", "Shared groups", count],
  ["offline_queue_messages_max", "Queue of one session, messages", count],
  ["offline_queue_bytes_max", "Queue of one session, bytes", bytes],
  ["retained_bytes_max", "Retained bytes", bytes],
  ["session_store_bytes_max", "Session store", bytes],
  ["publish_rate_max", "Publishes a second", count],
];

function Quotas(props: { state: TenantState; used: Used; tenant: string }): JSX.Element {
  const own = props.used.partitions.filter((each) => each.tenant === props.tenant);
  const sum = (of: (row: Used["partitions"][number]) => number) => own.reduce((all, each) => all + of(each), 0);
  const used: Record<string, number> = { connections_max: sum((each) => each.connected), subscription_filters_max: sum((each) => each.filters) };
  const rest = BOUNDS.filter(([key]) => !(key in used));
  return (
    <>
      {BOUNDS.filter(([key]) => key in used).map(([key, name, show]) => (
        <Bar name={name} used={used[key] ?? 0} bound={Number(props.state.quotas[key] ?? 0)} show={show} />
      ))}
      <Table caption="Bounds whose use is counted elsewhere" rows={rest} empty="" columns={[
        { name: "Bound", of: ([, name]) => name },
        { name: "At most", of: ([key, , show]) => Number(props.state.quotas[key]) ? show(Number(props.state.quotas[key])) : "without a bound", number: true },
      ]} />
      <p class="quiet">Here: {count(sum((each) => each.sessions))} sessions, {count(sum((each) => each.queued))} messages queued, {count(sum((each) => each.retained))} retained,
        partitions: {props.state.routing?.partitions.length ?? own.length}.</p>
    </>
  );
}

function ChangeQuota(props: { tenant: string; again: () => void }): JSX.Element {
  const [key, setKey] = useState(BOUNDS[0]![0]);
  const [value, setValue] = useState("");
  const doing = useDoing();
  const change = async () => {
    const done = await doing.run(async () => {
      const path = at`/v1/tenants/${props.tenant}/quotas`;
      const answer = await order<{ result: { takes_effect?: Record<string, string> } }>("PATCH", path, { quotas: { [key]: Number(value) } });
      const effect = answer.result.takes_effect?.[key];
      return `${key} is ${count(value)} now${effect ? `: ${effect}` : ""}.`;
    });
    if (done) props.again();
  };
  return (
    <>
      <Form label="Change a quota" onSubmit={change}>
        <Field name="Quota" value={key} onChange={setKey} options={BOUNDS.map(([name]) => name)} />
        <Field name="New value" kind="number" value={value} onChange={setValue} required />
        <button class="main" disabled={doing.busy}>Change</button>
      </Form>
      <Outcome doing={doing} />
    </>
  );
}

export function Tenants(props: PageProps): JSX.Element {
  const pages = usePages();
  const after = pages.after === null ? "" : `&after=${encodeURIComponent(pages.after)}`;
  const tenants = useAsked<Listed<TenantRow>>(`/v1/tenants?limit=100${after}`, 30_000);
  const state = useAsked<TenantState>(props.tenant ? at`/v1/tenants/${props.tenant}` : null, 15_000);
  const used = useAsked<Used>("/v1/broker/status", 10_000);
  return (
    <>
      {props.tenant && (
        <Card title={`Quotas of ${props.tenant}`} wide>
          <Answered asked={state}>
            {(answer) => <Answered asked={used}>{(numbers) => <Quotas state={answer} used={numbers} tenant={props.tenant} />}</Answered>}
          </Answered>
          <ChangeQuota tenant={props.tenant} again={state.again} />
        </Card>
      )}
      <Card title="All tenants" wide>
        <Answered asked={tenants}>
          {(answer) => (
            <>
              <Table caption="Choose one at the top of the page" rows={answer.items} empty="There is no tenant yet: quantum admin tenants create." columns={[
                { name: "Tenant", of: (row) => row.tenant_id },
                { name: "Server name", of: (row) => row.sni },
                { name: "Tier", of: (row) => row.tier },
                { name: "State", of: (row) => row.suspended ? <Tag kind="bad">suspended</Tag> : <Tag kind="good">open</Tag> },
                { name: "Since", of: (row) => moment(row.created_at) },
              ]} />
              {pages.pager(answer.after)}
            </>
          )}
        </Answered>
      </Card>
    </>
  );
}
