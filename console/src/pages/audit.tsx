/** Audit: the replicated trail of calls, searched and its chain shown; and what was refused here. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { query, type Listed, type Wide } from "../api";
import { useAsked } from "../asking";
import { Answered, Card, Field, Table, Tag, usePages } from "../parts";
import { count, moment } from "../words";

interface AuditRow {
  sequence: Wide;
  at: Wide;
  identity: string;
  kind: string;
  outcome: string;
  touched: string[];
  request_id: string;
  previous: string;
}

interface Refusal {
  at: Wide;
  identity: string | null;
  method: string;
  path: string;
  error: string;
  message: string;
}

function fits(row: object, words: string): boolean {
  const text = JSON.stringify(row).toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function Trail(props: { words: string }): JSX.Element {
  const pages = usePages();
  const [ring, setRing] = useState("calls");
  const asked = useAsked<Listed<AuditRow>>("/v1/audit" + query({ ring, limit: 500, after: pages.after }), 15_000);
  return (
    <Card title="Calls" wide>
      <Field name="Which" value={ring} onChange={(value) => { pages.first(); setRing(value); }} options={["calls", "publications"]} />
      <Answered asked={asked}>
        {(page) => {
          const rows = page.items.filter((row) => fits(row, props.words));
          return (
            <>
              <Table caption={`${count(rows.length)} of ${count(page.items.length)} on this page`} rows={rows} empty="No call that is sought is on this page." columns={[
                { name: "Number", of: (row) => row.sequence, number: true },
                { name: "At", of: (row) => moment(row.at) },
                { name: "Who", of: (row) => row.identity },
                { name: "What", of: (row) => row.kind },
                { name: "Outcome", of: (row) => <Tag kind={row.outcome === "Done" ? "good" : "bad"}>{row.outcome}</Tag> },
                { name: "Touched", of: (row) => row.touched.join(", ") || "–" },
                { name: "Chained to", of: (row) => <code title={row.previous}>{row.previous.slice(0, 10)}</code> },
              ]} />
              {pages.pager(page.after)}
            </>
          );
        }}
      </Answered>
    </Card>
  );
}

function RefusedHere(props: { words: string }): JSX.Element {
  const asked = useAsked<Listed<Refusal> & { total: Wide }>("/v1/audit/refusals?limit=500", 15_000);
  return (
    <Card title="Refused by this node" wide>
      <Answered asked={asked}>
        {(page) => (
          <Table caption={`${count(page.total)} since it started; these never reached the log`} rows={page.items.filter((row) => fits(row, props.words))} empty="Nothing that is sought was refused here." columns={[
            { name: "At", of: (row) => moment(row.at) },
            { name: "Who", of: (row) => row.identity ?? "nobody known" },
            { name: "Request", of: (row) => `${row.method} ${row.path}` },
            { name: "Refused for", of: (row) => `${row.error}: ${row.message}` },
          ]} />
        )}
      </Answered>
    </Card>
  );
}

export function Audit(): JSX.Element {
  const [words, setWords] = useState("");
  return (
    <>
      <div class="card"><Field name="Search: all of these words" kind="search" value={words} onChange={setWords} /></div>
      <Trail words={words} />
      <RefusedHere words={words} />
    </>
  );
}
