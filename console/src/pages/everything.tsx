/** Every other page that can be read, as the API describes itself: what is added there is here. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { useAsked } from "../asking";
import { at, query } from "../api";
import { Answered, Card, Field, Form, Table, usePages } from "../parts";
import type { PageProps } from "../main";

interface Parameter {
  name: string;
  in: "path" | "query";
  required: boolean;
  description: string;
}

interface Document {
  paths: Record<string, { get?: { summary?: string; operationId: string; parameters?: Parameter[] } }>;
}

const LEFT_OUT = new Set(["linearizable", "limit", "after"]);

function shown(value: unknown): string {
  return value == null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);
}

function Found(props: { path: string; values: Record<string, string> }): JSX.Element {
  const pages = usePages();
  const said = Object.fromEntries(Object.entries(props.values).filter(([name]) => !props.path.includes(`{${name}}`)));
  const path = props.path.replace(/\{(\w+)\}/g, (_all, name: string) => at`${props.values[name] ?? ""}`);
  const asked = useAsked<Record<string, unknown>>(path + query({ ...said, after: pages.after }));
  return (
    <Answered asked={asked}>
      {(answer) => {
        const items = Array.isArray(answer.items) ? (answer.items as Record<string, unknown>[]) : null;
        if (!items) return <pre>{JSON.stringify(answer, null, 2)}</pre>;
        const names = [...new Set(items.flatMap((item) => Object.keys(item)))];
        return (
          <>
            <Table caption={path} rows={items} empty="It is empty." columns={names.map((name) => ({ name: name.replaceAll("_", " "), of: (row: Record<string, unknown>) => shown(row[name]) }))} />
            {pages.pager(answer.after as string | null | undefined)}
          </>
        );
      }}
    </Answered>
  );
}

function Ask(props: { path: string; parameters: Parameter[]; tenant: string }): JSX.Element {
  const wanted = props.parameters.filter((each) => !LEFT_OUT.has(each.name));
  const [values, setValues] = useState<Record<string, string>>({ tenant_id: props.tenant });
  const [asked, setAsked] = useState<Record<string, string> | null>(null);
  const given = Object.fromEntries(wanted.map((each) => [each.name, values[each.name] ?? ""]));
  return (
    <>
      <Form label={`Ask ${props.path}`} onSubmit={() => setAsked(given)}>
        {wanted.map((each) => (
          <Field name={each.name.replaceAll("_", " ")} hint={each.description} value={values[each.name] ?? ""} required={each.required}
            onChange={(value) => setValues((before) => ({ ...before, [each.name]: value }))} />
        ))}
        <button class="main">Look</button>
      </Form>
      {asked && <Found key={JSON.stringify(asked)} path={props.path} values={asked} />}
    </>
  );
}

export function Everything(props: PageProps): JSX.Element {
  const document = useAsked<Document>("/openapi.json");
  const [chosen, choose] = useState("");
  return (
    <Card title="A page of the API" wide>
      <Answered asked={document}>
        {({ paths }) => {
          const names = Object.keys(paths).filter((path) => paths[path]?.get).sort();
          const path = chosen || names[0] || "";
          const page = paths[path]?.get;
          return (
            <>
              <Field name="Page" value={path} onChange={choose} options={names} />
              <p class="quiet">{page?.summary}</p>
              <Ask key={path} path={path} parameters={page?.parameters ?? []} tenant={props.tenant} />
            </>
          );
        }}
      </Answered>
      <p class="quiet">All of it, also what changes things: <a href="/openapi.json">/openapi.json</a>, and <code>quantum admin --help</code>.</p>
    </Card>
  );
}
