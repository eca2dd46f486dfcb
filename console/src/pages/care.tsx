/** Incidents, backups and the archive: what went wrong here, and what one could go back to. */

import type { JSX } from "preact";
import type { Wide } from "../api";
import { useAsked, type Asked } from "../asking";
import { Answered, Card, Fact, Table, Tag } from "../parts";
import { bytes, count, moment, span } from "../words";

const EVERY_MS = 5_000;

interface IncidentRow {
  number: number;
  class: string;
  safety_critical: boolean;
  at_ms: number;
  partitions: number[];
  partitions_left_off: number;
  facts: Record<string, string>;
  repeats: number;
}

interface BackupsView {
  interval_seconds: number;
  keep_count: number;
  keep_days: number;
  carries_out: boolean;
  state: string;
  reason: string;
  verified_ms: Wide | null;
  age_seconds: Wide;
  due_ms: Wide;
  failures: Wide;
  without_streams: string[];
  drilled_ms: Wide | null;
  count: number;
  backups: { made_ms: Wide; verified: boolean; scheduled: boolean }[];
}

interface ArchiveRow {
  prg: string;
  state: string;
  reason: string;
  archived_index: Wide;
  behind: Wide;
  archived_bytes: Wide;
  archived_at_ms: Wide | null;
}

interface ArchiveView {
  archive: string;
  partitions: ArchiveRow[];
  groups: ArchiveRow[];
}

function Incidents(): JSX.Element {
  const asked = useAsked<{ incidents: IncidentRow[]; held_back_total: number }>("/incidents", EVERY_MS);
  return (
    <Card title="Incidents of this node" wide>
      <Answered asked={asked}>
        {(found) => (
          <>
            <Table caption="Since it started, the newest first" rows={[...found.incidents].reverse()} empty="Nothing has gone wrong since this node started."
              columns={[
                { name: "At", of: (row) => moment(row.at_ms) },
                { name: "What", of: (row) => <Tag kind={row.safety_critical ? "bad" : "plain"}>{row.class}</Tag> },
                { name: "Groups", of: (row) => row.partitions.join(", ") + (row.partitions_left_off ? ` and ${row.partitions_left_off} more` : "") || "–" },
                { name: "Facts", of: (row) => Object.entries(row.facts).map(([name, value]) => `${name}: ${value}`).join(", ") || "–" },
                { name: "Again", of: (row) => count(row.repeats), number: true },
              ]} />
            {found.held_back_total > 0 && <p class="quiet">{count(found.held_back_total)} were not told one by one: too many came at once.</p>}
          </>
        )}
      </Answered>
    </Card>
  );
}

/** Show a page that a broker may do without: then its refusal is what there is to say. */
function Optional<Answer>(props: { asked: Asked<Answer>; children: (answer: Answer) => JSX.Element }): JSX.Element {
  const { problem } = props.asked;
  if (problem?.status === 404) return <p class="empty">{problem.message}.</p>;
  return <Answered asked={props.asked}>{props.children}</Answered>;
}

function Backups(): JSX.Element {
  const asked = useAsked<BackupsView>("/v1/backups", EVERY_MS);
  return (
    <Card title="Backups" wide>
      <Optional asked={asked}>
        {(found) => (
          <>
            <dl>
              <Fact name="State" bad={Number(found.failures) > 0}>{found.state}{found.reason && `: ${found.reason}`}</Fact>
              <Fact name="Newest that was verified">{found.verified_ms == null ? "none yet" : `${moment(found.verified_ms)}, ${span(Number(found.age_seconds))} old`}</Fact>
              <Fact name="The next is due">{moment(found.due_ms)}</Fact>
              <Fact name="Made every">{span(found.interval_seconds)}</Fact>
              <Fact name="Failed in a row" bad={Number(found.failures) > 0}>{count(found.failures)}</Fact>
              <Fact name="A restore was practised">{found.drilled_ms == null ? "never" : moment(found.drilled_ms)}</Fact>
              <Fact name="Made by">{found.carries_out ? "this node" : "the node that leads the control plane"}</Fact>
            </dl>
            {found.without_streams.length > 0 && <p>The newest has no streams of {found.without_streams.join(", ")}: a restore refuses them.</p>}
            <Table caption={`The newest of ${count(found.count)}`} rows={found.backups} empty="There is none yet."
              columns={[
                { name: "Began", of: (row) => moment(row.made_ms) },
                { name: "Read back", of: (row) => <Tag kind={row.verified ? "good" : "plain"}>{row.verified ? "verified" : "not yet"}</Tag> },
                { name: "By", of: (row) => (row.scheduled ? "the schedule" : "somebody's order") },
              ]} />
          </>
        )}
      </Optional>
    </Card>
  );
}

function Archive(): JSX.Element {
  const asked = useAsked<ArchiveView>("/v1/archive", EVERY_MS);
  return (
    <Card title="Archive" wide>
      <Optional asked={asked}>
        {(found) => (
          <Table caption={`How far the logs of this node are in ${found.archive}`} rows={[...found.partitions, ...found.groups]} empty="It has no logs."
            columns={[
              { name: "Log", of: (row) => <code>{row.prg}</code> },
              { name: "State", of: (row) => `${row.state}${row.reason ? `: ${row.reason}` : ""}` },
              { name: "Archived up to", of: (row) => count(row.archived_index), number: true },
              { name: "Behind", of: (row) => count(row.behind), number: true },
              { name: "Bytes", of: (row) => bytes(row.archived_bytes), number: true },
              { name: "At", of: (row) => moment(row.archived_at_ms) },
            ]} />
        )}
      </Optional>
    </Card>
  );
}

export function Care(): JSX.Element {
  return (
    <>
      <Incidents />
      <Backups />
      <Archive />
    </>
  );
}
