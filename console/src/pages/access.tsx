/** Access: roles, a tenant's rules, certificates with their ends, keys. */

import type { JSX } from "preact";
import { at, type Listed, type Wide } from "../api";
import { useAsked } from "../asking";
import { Answered, Card, Fact, Table, Tag } from "../parts";
import { count, moment, span } from "../words";
import { useNumbers } from "./ages";
import type { PageProps } from "../main";

interface Rule {
  effect: string;
  action: string;
  filter: string;
  [member: string]: unknown;
}

interface Bundle {
  owner: string;
  version: Wide;
  published_at: Wide;
  revoked: string[];
  roots: unknown[];
}

interface Key {
  purpose: string;
  key_id: string;
  activates_at: Wide;
  retires_at: Wide | null;
}

const SOON_SECONDS = 7 * 86_400;

/** What a rule says beside effect, action and filter. */
function restOf(rule: Rule): string {
  const { effect: _effect, action: _action, filter: _filter, ...rest } = rule;
  const said = Object.entries(rest).filter(([, value]) => value != null && value !== "" && !(Array.isArray(value) && !value.length));
  return said.map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ") || "everybody";
}

function Roles(): JSX.Element {
  const asked = useAsked<{ version: Wide; bindings: { identity: string; role: string; tenant_id: string | null }[] }>("/v1/roles");
  return (
    <Card title="Roles" wide>
      <Answered asked={asked}>
        {(answer) => (
          <Table caption={`Version ${answer.version}`} rows={answer.bindings} empty="Nobody has a role." columns={[
            { name: "Who", of: (row) => row.identity },
            { name: "Role", of: (row) => row.role },
            { name: "Of tenant", of: (row) => row.tenant_id ?? "all" },
          ]} />
        )}
      </Answered>
    </Card>
  );
}

function Rules(props: { tenant: string }): JSX.Element {
  const asked = useAsked<{ version: Wide; rules: Rule[] }>(at`/v1/tenants/${props.tenant}/acls`);
  return (
    <Card title={`Access rules of ${props.tenant}`} wide>
      <Answered asked={asked}>
        {(answer) => (
          <Table caption={`Version ${answer.version}; a rule that denies wins, and what none allows is refused`} rows={answer.rules.map((rule, nth) => ({ rule, nth }))}
            empty="It has no access list: every client of the tenant may everything." columns={[
              { name: "Rule", of: ({ nth }) => nth + 1, number: true },
              { name: "Effect", of: ({ rule }) => <Tag kind={rule.effect === "Allow" ? "good" : "bad"}>{rule.effect}</Tag> },
              { name: "Action", of: ({ rule }) => rule.action },
              { name: "Filter", of: ({ rule }) => <code>{rule.filter}</code> },
              { name: "For", of: ({ rule }) => restOf(rule) },
            ]} />
        )}
      </Answered>
      <p class="quiet">Which rule decides about a client: <a href="#/why">ask why</a>. They are changed by <code>quantum admin tenants set-acls</code>.</p>
    </Card>
  );
}

function Certificates(): JSX.Element {
  const asked = useAsked<Listed<Bundle>>("/v1/certificates");
  const left = useNumbers()?.sums.get("clustor_security_cert_expiry_seconds");
  return (
    <Card title="Certificates" wide>
      <dl>
        <Fact name="This node's own ends in" bad={left != null && left > 0 && left < SOON_SECONDS}>{left == null || left <= 0 ? "it has none" : span(left)}</Fact>
      </dl>
      <Answered asked={asked}>
        {(answer) => (
          <Table caption="Whom clients and nodes are believed by" rows={answer.items} empty="No trust bundle was published: in development there is none." columns={[
            { name: "Of", of: (row) => row.owner },
            { name: "Version", of: (row) => row.version, number: true },
            { name: "Published", of: (row) => moment(row.published_at) },
            { name: "Authorities", of: (row) => count(row.roots.length), number: true },
            { name: "Revoked", of: (row) => row.revoked.length ? <code>{row.revoked.join(" ")}</code> : "none" },
          ]} />
        )}
      </Answered>
    </Card>
  );
}

function Keys(): JSX.Element {
  const asked = useAsked<{ epochs: Record<string, Wide> | null; keys: Key[] }>("/v1/keys");
  return (
    <Card title="Keys" wide>
      <Answered asked={asked}>
        {(answer) => (
          <>
            {answer.epochs && <dl>{Object.entries(answer.epochs).map(([name, value]) => <Fact name={name.replaceAll("_", " ")}>{count(value)}</Fact>)}</dl>}
            <Table caption="Public keys" rows={answer.keys} empty="No key is registered." columns={[
              { name: "Purpose", of: (row) => row.purpose },
              { name: "Key", of: (row) => row.key_id },
              { name: "From", of: (row) => Number(row.activates_at) ? moment(row.activates_at) : "the beginning" },
              { name: "Until", of: (row) => row.retires_at == null ? "it is retired" : moment(row.retires_at) },
            ]} />
          </>
        )}
      </Answered>
    </Card>
  );
}

export function Access(props: PageProps): JSX.Element {
  return (
    <>
      {props.tenant && <Rules tenant={props.tenant} />}
      <Roles />
      <Certificates />
      <Keys />
    </>
  );
}
