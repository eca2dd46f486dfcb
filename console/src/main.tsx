/** The shell: which page is shown, of which tenant, in which colours, and as whom one is seen. */

import { render, type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Listed } from "./api";
import { useAsked } from "./asking";
import { Overview } from "./pages/overview";
import { Nodes } from "./pages/nodes";
import { Tenants } from "./pages/tenants";
import { Clients } from "./pages/clients";
import { Topics } from "./pages/topics";
import { Streams } from "./pages/streams";
import { Kafka } from "./pages/kafka";
import { Queues } from "./pages/queues";
import { Users } from "./pages/users";
import { Access } from "./pages/access";
import { Configuration } from "./pages/configuration";
import { Audit } from "./pages/audit";
import { Why } from "./pages/why";
import { Deliveries } from "./pages/deliveries";
import { Care } from "./pages/care";
import { LiveClient } from "./pages/live";
import { Everything } from "./pages/everything";
import "./style.css";

export interface PageProps {
  tenant: string;
  asked: URLSearchParams;
}

interface PageEntry {
  name: string;
  lead: string;
  page: (props: PageProps) => JSX.Element;
}

const PAGES: Record<string, PageEntry> = {
  overview: { name: "Overview", lead: "What this node takes, how long an acknowledgement takes, and what is wrong.", page: Overview },
  nodes: { name: "Nodes and groups", lead: "Who leads what, how far the others are behind, and what it lies on.", page: Nodes },
  tenants: { name: "Tenants", lead: "Quotas, and how much of each is used.", page: Tenants },
  clients: { name: "Clients and sessions", lead: "Who is connected, who will come back, and what waits for them.", page: Clients },
  topics: { name: "Topics and retained", lead: "What is subscribed to, what is retained, and a message of your own.", page: Topics },
  streams: { name: "Streams", lead: "What is kept by offset, and what is in it.", page: Streams },
  kafka: { name: "Kafka", lead: "Topics and their partitions, consumer groups and how far they are behind.", page: Kafka },
  queues: { name: "Queues", lead: "AMQP's queues: what waits in them, what died, and who receives.", page: Queues },
  users: { name: "Users", lead: "Who comes by a name and a password, and what the rules let them do.", page: Users },
  access: { name: "Access and keys", lead: "Who may what: roles, access rules, certificates, keys.", page: Access },
  configuration: { name: "Configuration", lead: "What is in force, since when, by whom, and the way back.", page: Configuration },
  audit: { name: "Audit", lead: "Who did what, and what was refused.", page: Audit },
  care: { name: "Incidents and backups", lead: "What went wrong at this node, and what one could go back to.", page: Care },
  why: { name: "Why", lead: "Ask why something waits or is refused: the sentence, the rule, the command.", page: Why },
  deliveries: { name: "Deliveries and receipts", lead: "Would a message come, where has one been, and proof that it was on disks.", page: Deliveries },
  live: { name: "Live client", lead: "An MQTT 5 client in this page, over WebSocket.", page: LiveClient },
  everything: { name: "Everything else", lead: "Every other page of the API that can be read.", page: Everything },
};

interface Place {
  name: string;
  asked: URLSearchParams;
}

function place(): Place {
  const [name = "", asked = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: name in PAGES ? name : "overview", asked: new URLSearchParams(asked) };
}

interface ClusterSight {
  access: { identity: string; roles: string[]; development: boolean };
  cluster: { cluster_id: string } | null;
}

function useTheme(): [string, (theme: string) => void] {
  const [theme, setTheme] = useState(localStorage.getItem("theme") ?? "system");
  useEffect(() => {
    localStorage.setItem("theme", theme);
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }, [theme]);
  return [theme, setTheme];
}

function Header(props: { tenant: string; setTenant: (name: string) => void }): JSX.Element {
  const [theme, setTheme] = useTheme();
  const sight = useAsked<ClusterSight>("/v1/cluster/state?linearizable=false", 60_000);
  const tenants = useAsked<Listed<{ tenant_id: string }>>("/v1/tenants?limit=1000&linearizable=false", 60_000);
  const names = tenants.answer?.items.map((each) => each.tenant_id) ?? [];
  useEffect(() => {
    const first = names[0];
    if (first !== undefined && !names.includes(props.tenant)) props.setTenant(first);
  }, [names.join()]);
  const access = sight.answer?.access;
  return (
    <header>
      <a class="name" href="#/overview">Quantum</a>
      <span class="quiet">{sight.answer?.cluster?.cluster_id ?? ""}</span>
      <div class="push">
        {access && (
          <span class="quiet" title={access.identity}>
            {access.development ? "development: everybody is Operator" : `${access.identity} (${access.roles.join(", ") || "no role"})`}
          </span>
        )}
        <label>Tenant{" "}
          {names.length ? (
            <select value={props.tenant} onChange={(event) => props.setTenant(event.currentTarget.value)}>
              {names.map((each) => <option value={each}>{each}</option>)}
            </select>
          ) : (
            <input value={props.tenant} size={10} onChange={(event) => props.setTenant(event.currentTarget.value)} />
          )}
        </label>
        <label>Colours{" "}
          <select value={theme} onChange={(event) => setTheme(event.currentTarget.value)}>
            {["system", "light", "dark"].map((each) => <option value={each}>{each}</option>)}
          </select>
        </label>
      </div>
    </header>
  );
}

function Console(): JSX.Element {
  const [here, setHere] = useState(place);
  const [tenant, setTenant] = useState(localStorage.getItem("tenant") ?? "");
  const main = useRef<HTMLElement>(null);
  useEffect(() => {
    const heard = () => {
      setHere(place());
      main.current?.focus({ preventScroll: true });
      scrollTo(0, 0);
    };
    addEventListener("hashchange", heard);
    return () => removeEventListener("hashchange", heard);
  }, []);
  useEffect(() => localStorage.setItem("tenant", tenant), [tenant]);
  const entry = PAGES[here.name]!;
  useEffect(() => {
    document.title = `${entry.name} – Quantum console`;
  }, [entry.name]);
  return (
    <div class="shell">
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to the page</a>
      <Header tenant={tenant} setTenant={setTenant} />
      <nav aria-label="Pages">
        <ul>
          {Object.entries(PAGES).map(([name, each]) => (
            <li><a href={`#/${name}`} aria-current={name === here.name ? "page" : undefined}>{each.name}</a></li>
          ))}
          <li><a href="/docs/">The book</a></li>
        </ul>
      </nav>
      <main id="main" ref={main} tabIndex={-1}>
        <h1>{entry.name}</h1>
        <p class="lead">{entry.lead}</p>
        <entry.page key={`${here.name}?${here.asked}@${tenant}`} tenant={tenant} asked={here.asked} />
      </main>
    </div>
  );
}

render(<Console />, document.getElementById("app")!);
