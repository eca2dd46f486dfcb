/** Access: roles, a tenant's rules, certificates with their ends, keys. */

import type { JSX } from "preact";
import { at, type Listed, type Wide } from "../api";
import { useAsked } from "../asking";
import { readAuthority, type Authority } from "../certificates";
import { Answered, Card, Fact, Table, Tag } from "../parts";
import { count, moment, span } from "../words";
import { useNumbers } from "./ages";
import type { PageProps } from "../main";

interface Rule {
  effect: string;
  action: string;
  principal: string;
  filter: string;
  resource?: string;
  name?: string;
  prefix?: string;
}

interface Bundle {
  owner: string;
  version: Wide;
  published_at: Wide;
  revoked: string[];
  roots: string[];
}

interface Key {
  purpose: string;
  key_id: string;
  activates_at: Wide;
  retires_at: Wide | null;
}

const SOON_SECONDS = 7 * 86_400;

/** What a rule is about: topics by a filter, client ids where it is about connecting, others by name. */
function About(props: { rule: Rule }): JSX.Element {
  const { resource = "Topic", name, prefix, filter, action } = props.rule;
  if (resource !== "Topic") {
    const named = name !== undefined ? <code>{name}</code> : prefix !== undefined ? <code>{prefix}*</code> : "all";
    return <>{resource} {named}</>;
  }
  return <>{action === "Connect" ? "Client id" : "Topic"} <code>{filter}</code></>;
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

export function Rules(props: { tenant: string }): JSX.Element {
  const asked = useAsked<{ version: Wide; rules: Rule[] }>(at`/v1/tenants/${props.tenant}/acls?linearizable=false`, 10_000);
  return (
    <Card title={`Access rules of ${props.tenant}`} wide>
      <Answered asked={asked}>
        {(answer) => (
          <Table caption={`Version ${answer.version}; a rule that denies wins, and what none allows is refused`} rows={answer.rules.map((rule, nth) => ({ rule, nth }))}
            empty="It has no access list: every client of the tenant may everything." columns={[
              { name: "Rule", of: ({ nth }) => nth + 1, number: true },
              { name: "Effect", of: ({ rule }) => <Tag kind={rule.effect === "Allow" ? "good" : "bad"}>{rule.effect}</Tag> },
              { name: "Who", of: ({ rule }) => rule.principal === "*" ? "everybody" : <code>{rule.principal}</code> },
              { name: "Action", of: ({ rule }) => rule.action },
              { name: "About", of: ({ rule }) => <About rule={rule} /> },
            ]} />
        )}
      </Answered>
      <p class="quiet">Which rule decides about a client: <a href="#/why">ask why</a>. They are changed by <code>quantum admin tenants set-acls</code>.</p>
    </Card>
  );
}

interface Root extends Authority {
  owner: string;
  version: Wide;
  published: Wide;
}

function rootsOf(bundle: Bundle): Root[] {
  return bundle.roots.map((each) => ({ ...readAuthority(each), owner: bundle.owner, version: bundle.version, published: bundle.published_at }));
}

function Ends(props: { ends: number | null }): JSX.Element {
  if (props.ends === null) return <>–</>;
  const left = (props.ends - Date.now()) / 1000;
  const words = left <= 0 ? "over" : `in ${span(left)}`;
  return <>{moment(props.ends)} {left < SOON_SECONDS ? <Tag kind="bad">{words}</Tag> : <span class="quiet">({words})</span>}</>;
}

function Authorities(props: { bundles: Bundle[]; empty: string }): JSX.Element {
  const revoked = props.bundles.filter((each) => each.revoked.length);
  return (
    <>
      <Table caption="Whom clients and nodes are believed by" rows={props.bundles.flatMap(rootsOf)} empty={props.empty} columns={[
        { name: "Of", of: (row) => row.owner },
        { name: "Authority", of: (row) => row.name },
        { name: "Ends", of: (row) => <Ends ends={row.ends} /> },
        { name: "Version", of: (row) => row.version, number: true },
        { name: "Published", of: (row) => moment(row.published) },
      ]} />
      {revoked.map((each) => <p>Revoked by {each.owner}: <code>{each.revoked.join(" ")}</code></p>)}
    </>
  );
}

/** The authorities of one tenant's clients. */
export function Trust(props: { tenant: string }): JSX.Element {
  const asked = useAsked<{ trust: Bundle }>(at`/v1/tenants/${props.tenant}?linearizable=false`, 60_000);
  return (
    <Card title={`Certificates of ${props.tenant}`} wide>
      <Answered asked={asked}>
        {({ trust }) => <Authorities bundles={[trust]} empty="It has no authority of its own: its clients come by those of the listener." />}
      </Answered>
      <p class="quiet">Roles, this node's own certificate and the keys are on <a href="#/access">Access and keys</a>.</p>
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
        {(answer) => <Authorities bundles={answer.items} empty="No trust bundle was published: in development there is none." />}
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
