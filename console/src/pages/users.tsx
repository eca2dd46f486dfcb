/** Users of a tenant: who comes by a name and a password, what the rules let them, and why. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { at, look, order, query, type Wide } from "../api";
import { useAsked, useDoing } from "../asking";
import { Answered, Card, Confirm, Field, Form, Outcome, Table } from "../parts";
import { keepPassword } from "../passwords";
import { Rules, Trust } from "./access";
import { Cause, shell } from "./why";
import type { PageProps } from "../main";

type Settings = Record<string, unknown>;

interface Configuration {
  version: Wide;
  in_force: { document: Settings; set_by: string; set_at: Wide } | null;
}

interface Verdict {
  allowed: boolean;
  sentence: string;
  rule: number;
}

const USERS = "users.";
const NAME = /^[A-Za-z0-9._-]{1,64}$/;
const ACTIONS = ["connect", "publish", "subscribe", "produce", "consume", "manage", "describe"] as const;
const RESOURCES = ["topic", "stream", "queue", "group", "transactional-id", "cluster"] as const;

function place(tenant: string): string {
  return "/v1/config" + query({ scope: "Tenant", name: tenant });
}

/** Change the tenant's document as it stands now; what else is in it stays, passwords too. */
async function change(tenant: string, edit: (document: Settings) => Settings): Promise<void> {
  const held = await look<Configuration>(place(tenant));
  const document = edit({ ...(held.in_force?.document ?? {}) });
  await order("PUT", "/v1/config", { scope: { kind: "Tenant", name: tenant }, expected_version: held.version, document });
}

function Add(props: { tenant: string; name: string; known: string[]; done: () => void }): JSX.Element {
  const [name, setName] = useState(props.name);
  const [password, setPassword] = useState("");
  const [again, setAgain] = useState("");
  const doing = useDoing();
  const add = async () => {
    const done = await doing.run(async () => {
      if (!NAME.test(name)) throw new Error("A name has 1 to 64 letters, digits, dots, dashes and underscores.");
      if (password !== again) throw new Error("The two passwords are not the same: type them again.");
      const kept = await keepPassword(password);
      await change(props.tenant, (document) => ({ ...document, [USERS + name]: kept }));
      return `${name} may connect; access rules name it user:${name}.`;
    });
    setPassword("");
    setAgain("");
    if (done) props.done();
  };
  const known = props.known.includes(name);
  return (
    <Card title="A new user, or a new password" wide>
      <Form label="Add a user" onSubmit={add}>
        <Field name="User name" value={name} onChange={setName} required />
        <Field name="Password" kind="password" value={password} onChange={setPassword} required />
        <Field name="The same again" kind="password" value={again} onChange={setAgain} required />
        <button class="main" disabled={doing.busy}>{known ? "Change its password" : "Add"}</button>
      </Form>
      <Outcome doing={doing} />
      <p class="quiet">The password is hashed in this page and never sent. It counts within a second or two, for MQTT, Kafka (PLAIN, SCRAM) and AMQP.</p>
    </Card>
  );
}

function Answer(props: { tenant: string; user: string; action: string; resource: string; name: string }): JSX.Element {
  const { tenant, user, action, resource, name } = props;
  const principal = `user:${user}`;
  const asked = useAsked<Verdict>(at`/clients/${user}/access` + query({ tenant, action, resource, topic: name, principal }));
  const command = `quantum explain access ${shell(user)} ${action} ${shell(name)} --tenant ${tenant} --principal ${principal}` + (resource === "topic" ? "" : ` --resource ${resource}`);
  return (
    <div aria-live="polite">
      <Answered asked={asked}>
        {(answer) => <Cause wrong={!answer.allowed} clause={answer.rule ? `access rule ${answer.rule}` : "no rule decided"} sentence={answer.sentence} remedy="" command={command} />}
      </Answered>
    </div>
  );
}

function May(props: { tenant: string; user: string; onClose: () => void }): JSX.Element {
  const [action, setAction] = useState<string>(ACTIONS[0]);
  const [resource, setResource] = useState<string>(RESOURCES[0]);
  const [name, setName] = useState("");
  const [asked, ask] = useState<{ action: string; resource: string; name: string } | null>(null);
  return (
    <Card title={`What may ${props.user}?`} wide opened>
      <Form label="Ask what a user may" onSubmit={() => ask({ action, resource, name })}>
        <Field name="Wants to" value={action} onChange={setAction} options={ACTIONS} />
        <Field name="Kind" value={resource} onChange={setResource} options={RESOURCES} />
        <Field name="Its name" value={name} onChange={setName} required={action !== "connect" && resource !== "cluster"} />
        <button class="main">Ask why</button>
        <button type="button" onClick={props.onClose}>Close</button>
      </Form>
      {asked && <Answer key={JSON.stringify(asked)} tenant={props.tenant} user={props.user} {...asked} />}
    </Card>
  );
}

export function Users(props: PageProps): JSX.Element {
  const { tenant } = props;
  const [leaving, setLeaving] = useState<string | null>(null);
  const [asking, setAsking] = useState<string | null>(null);
  const [renewing, setRenewing] = useState("");
  const doing = useDoing();
  const asked = useAsked<Configuration>(tenant ? place(tenant) : null, 15_000);
  if (!tenant) return <p class="empty">Choose a tenant at the top of the page.</p>;
  const names = Object.keys(asked.answer?.in_force?.document ?? {}).filter((each) => each.startsWith(USERS)).map((each) => each.slice(USERS.length)).sort();
  const remove = async (name: string) => {
    setLeaving(null);
    const done = await doing.run(async () => {
      await change(tenant, ({ [USERS + name]: _gone, ...rest }) => rest);
      return `${name} is no user of ${tenant} any more.`;
    });
    if (done) {
      if (asking === name) setAsking(null);
      asked.again();
    }
  };
  return (
    <>
      <Outcome doing={doing} />
      {asking !== null && <May key={asking} tenant={tenant} user={asking} onClose={() => setAsking(null)} />}
      <Card title="Users" wide>
        <Answered asked={asked}>
          {() => (
            <Table caption={`Of ${tenant}: who may come by a name and a password`} rows={names} empty="There is no user yet: add one below. Clients come by certificates, or as the listener lets them." columns={[
              { name: "User", of: (name) => name },
              { name: "In access rules", of: (name) => <code>user:{name}</code> },
              { name: "Password", of: () => "is set" },
              { name: "Ask", of: (name) => <button aria-label={`Why may ${name} do something, or not?`} onClick={() => setAsking(name)}>Why?</button> },
              {
                name: "Order", of: (name) => (
                  <>
                    <button aria-label={`A new password for ${name}`} onClick={() => setRenewing(name)}>New password</button>
                    <button class="danger" aria-label={`Remove the user ${name}`} onClick={() => setLeaving(name)}>Remove…</button>
                  </>
                ),
              },
            ]} />
          )}
        </Answered>
      </Card>
      <Add key={`add${renewing}`} tenant={tenant} name={renewing} known={names} done={asked.again} />
      <Rules tenant={tenant} />
      <Trust tenant={tenant} />
      {leaving !== null && (
        <Confirm title={`Remove the user ${leaving}?`} yes="Remove it" onYes={() => void remove(leaving)} onNo={() => setLeaving(null)}>
          <p>It may come no more, and who is connected as it must go within a second or two. It is on record who did it.</p>
          {names.length === 1 && <p><strong>It is the last one.</strong> Where a listener's passwords are optional, nobody's are checked while a tenant has no user.</p>}
        </Confirm>
      )}
    </>
  );
}
