/** Configuration: what is in force, what it was before, the difference, and the way back. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { look, order, query, Refused, type Listed, type Wide } from "../api";
import { useAsked, useDoing } from "../asking";
import { Answered, Card, Confirm, Field, Form, Outcome, Table, usePages } from "../parts";
import { moment } from "../words";
import type { PageProps } from "../main";

interface Scope {
  kind: string;
  name: string;
}

interface Version {
  scope: Scope;
  version: Wide;
  tag: string;
  set_by: string;
  set_at: Wide;
  restores: Wide | null;
  document: Record<string, unknown>;
}

interface Explained {
  key: string;
  value: unknown;
  scope: Scope;
  version: Wide;
  set_by: string;
  set_at: Wide;
  takes_effect: string;
}

/** Say what differs between two documents, one line each. */
export function difference(before: Record<string, unknown>, now: Record<string, unknown>): string[] {
  const keys = [...new Set([...Object.keys(before), ...Object.keys(now)])].sort();
  return keys.flatMap((key) => {
    const was = JSON.stringify(before[key]);
    const is = JSON.stringify(now[key]);
    if (was === is) return [];
    return [...(was === undefined ? [] : [`- ${key} = ${was}`]), ...(is === undefined ? [] : [`+ ${key} = ${is}`])];
  });
}

function Explain(props: { tenant: string }): JSX.Element {
  const [key, setKey] = useState("rates.publishes");
  const doing = useDoing();
  const explain = () =>
    doing.run(async () => {
      try {
        const found = await look<Explained>("/v1/config/explain" + query({ key, tenant: props.tenant }));
        const source = `${found.scope.kind}/${found.scope.name} version ${found.version}, by ${found.set_by} at ${moment(found.set_at)}`;
        return `${found.key} is ${JSON.stringify(found.value)}: ${source}. Takes effect: ${found.takes_effect}.`;
      } catch (error) {
        if (error instanceof Refused && error.status === 404) return `${key}: no scope sets it, so its default holds.`;
        throw error;
      }
    });
  return (
    <Card title="Where does a value come from?" wide>
      <Form label="Explain a key" onSubmit={explain}>
        <Field name="Key" value={key} onChange={setKey} required />
        <button class="main">Ask</button>
      </Form>
      <Outcome doing={doing} />
    </Card>
  );
}

function Change(props: { tenant: string; done: () => void }): JSX.Element {
  const [scope, setScope] = useState(`Tenant/${props.tenant}`);
  const [text, setText] = useState("{\n}");
  const doing = useDoing();
  const set = async () => {
    const done = await doing.run(async () => {
      let document: unknown;
      try {
        document = JSON.parse(text);
      } catch {
        throw new Error("this is not JSON: a document is an object of keys and values");
      }
      const [kind = "", name = "all"] = scope.split("/");
      const held = await look<{ version: Wide }>("/v1/config" + query({ scope: kind, name }));
      const body = { scope: { kind, name }, expected_version: Number(held.version), document };
      const answer = await order<{ result: Record<string, unknown> }>("PUT", "/v1/config", body);
      return `It stands: ${JSON.stringify(answer.result)}`;
    });
    if (done) props.done();
  };
  return (
    <Card title="Set a document" wide>
      <Form label="Set a configuration document" onSubmit={set}>
        <Field name="Scope" value={scope} onChange={setScope} required />
        <Field name="The whole document" kind="area" value={text} onChange={setText} />
        <button class="main" disabled={doing.busy}>Set</button>
      </Form>
      <Outcome doing={doing} />
    </Card>
  );
}

export function Configuration(props: PageProps): JSX.Element {
  const pages = usePages();
  const asked = useAsked<Listed<Version>>("/v1/config/versions" + query({ limit: 100, after: pages.after }));
  const [chosen, choose] = useState<Version | null>(null);
  const [back, setBack] = useState<Version | null>(null);
  const doing = useDoing();
  const roll = async (to: Version) => {
    setBack(null);
    const done = await doing.run(async () => {
      await order("POST", "/v1/config/rollback" + query({ to: to.version, scope: to.scope.kind, name: to.scope.name }));
      return `${to.scope.kind}/${to.scope.name} is as it was in version ${to.version}.`;
    });
    if (done) asked.again();
  };
  const before = (one: Version, all: Version[]) =>
    all.find((each) => each.scope.kind === one.scope.kind && each.scope.name === one.scope.name && Number(each.version) === Number(one.version) - 1);
  return (
    <>
      <Outcome doing={doing} />
      <Card title="Versions" wide>
        <Answered asked={asked}>
          {(page) => (
            <>
              <Table caption="All scopes; the newest version of each is in force" rows={page.items} empty="Nothing was ever set: every value is its default." columns={[
                { name: "Scope", of: (row) => `${row.scope.kind}/${row.scope.name}` },
                { name: "Version", of: (row) => row.version, number: true },
                { name: "By", of: (row) => row.set_by },
                { name: "At", of: (row) => moment(row.set_at) },
                { name: "Look", of: (row) => <button aria-label={`What version ${row.version} of ${row.scope.kind}/${row.scope.name} changed`} onClick={() => choose(row)}>What it changed</button> },
                { name: "Order", of: (row) => <button class="danger" aria-label={`Go back to version ${row.version} of ${row.scope.kind}/${row.scope.name}`} onClick={() => setBack(row)}>Go back to it…</button> },
              ]} />
              {chosen && (
                <>
                  <h2>{chosen.scope.kind}/{chosen.scope.name}, version {chosen.version}</h2>
                  <pre>{difference(before(chosen, page.items)?.document ?? {}, chosen.document).join("\n") || "nothing"}</pre>
                </>
              )}
              {pages.pager(page.after)}
            </>
          )}
        </Answered>
      </Card>
      <Explain tenant={props.tenant} />
      <Change key={props.tenant} tenant={props.tenant} done={asked.again} />
      {back && (
        <Confirm title={`Go back to version ${back.version}?`} yes="Go back" onYes={() => void roll(back)} onNo={() => setBack(null)}>
          <p>The document of {back.scope.kind}/{back.scope.name} becomes what it was then, as a new version.</p>
        </Confirm>
      )}
    </>
  );
}
