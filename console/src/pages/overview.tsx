/** Overview: live numbers of this node, and everything that is wrong, each with a way on. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { lookText, Refused, type Listed, type Wide } from "../api";
import { useAsked } from "../asking";
import { growth, percentile, readMetrics, type Sample } from "../metrics";
import { Answered, Card, Fact, Problem, Tag } from "../parts";
import { Plot } from "../plot";
import { bytes, count, rate, span } from "../words";
import { WhyGroup } from "./why";

const EVERY_MS = 3_000;
const KEPT = 200;
const WINDOW = 5;

/** What was read so far; it is kept while other pages are shown. */
const samples: Sample[] = [];

function useSamples(): { problem: Refused | null; turn: number } {
  const [state, setState] = useState({ problem: null as Refused | null, turn: 0 });
  useEffect(() => {
    let over = false;
    let timer = 0;
    const read = async () => {
      let problem: Refused | null = null;
      if (!document.hidden) {
        try {
          samples.push(readMetrics(await lookText("/metrics"), Date.now() / 1000));
          samples.splice(0, samples.length - KEPT);
        } catch (error) {
          problem = error instanceof Refused ? error : new Refused(0, "", String(error), "");
        }
      }
      if (over) return;
      setState((before) => ({ problem, turn: before.turn + 1 }));
      timer = window.setTimeout(read, EVERY_MS);
    };
    void read();
    return () => {
      over = true;
      window.clearTimeout(timer);
    };
  }, []);
  return state;
}

/** One value per sample, each made of the samples around it. */
function line(name: string, of: (before: Sample, now: Sample) => number | null) {
  const values = samples.map((now, nth) => {
    const before = samples[Math.max(0, nth - WINDOW)];
    return nth === 0 || !before ? null : of(before, now);
  });
  return { name, values };
}

function Plots(): JSX.Element {
  const times = samples.map((each) => each.at);
  const ack = "quantum_publish_ack_seconds";
  const sync = "clustor_wal_fsync_latency_seconds";
  const seconds = (value: number) => span(value);
  return (
    <div class="grid plots">
      <Plot title="Messages" times={times} show={rate} lines={[
        line("received", (a, b) => growth("quantum_publishes_received_total", a, b)),
        line("sent", (a, b) => growth("quantum_publishes_sent_total", a, b)),
      ]} />
      <Plot title="From publish to acknowledgement" times={times} show={seconds} lines={[
        line("half within", (a, b) => percentile(ack, 0.5, a, b)),
        line("99 % within", (a, b) => percentile(ack, 0.99, a, b)),
      ]} />
      <Plot title="Sync of this disk" times={times} show={seconds} lines={[
        line("half within", (a, b) => percentile(sync, 0.5, a, b)),
        line("99 % within", (a, b) => percentile(sync, 0.99, a, b)),
      ]} />
      <Plot title="Connections" times={times} show={count} lines={[
        { name: "clients", values: samples.map((each) => each.sums.get("quantum_connections") ?? null) },
      ]} />
    </div>
  );
}

interface BrokerStatus {
  disk: { level: string; free_bytes: Wide | null };
  partitions: { tenant: string; partition: number; group: number; leader: number | null; serves: boolean; state: string; waits_for: string[] }[];
  stopped: { group: number; cause: string }[];
  closed: string[];
}

/** What the numbers say is wrong: the sentence, and what to do. */
function wrongNumbers(last: Sample): [string, string][] {
  const of = (name: string) => last.sums.get(name) ?? 0;
  const found: [boolean, string, string][] = [
    [of("clustor_raft_groups_leaderless") > 0, `${of("clustor_raft_groups_leaderless")} groups have no leader`, "see Nodes and groups"],
    [of("clustor_raft_groups_failed") > 0, `${of("clustor_raft_groups_failed")} replicas stopped rather than lie`, "quantum doctor"],
    [of("clustor_wal_disk_free_bytes") < 0.1 * of("clustor_wal_disk_total_bytes"), `the disk has ${bytes(of("clustor_wal_disk_free_bytes"))} left`, "make room: a full disk takes no writes"],
    [of("clustor_scrub_faults_total") > 0, `${of("clustor_scrub_faults_total")} readings found damage`, "quantum why GROUP"],
    [of("quantum_sessions_full") > 0, `${of("quantum_sessions_full")} sessions are full, their publishers wait`, "see Clients and sessions"],
    [of("clustor_wal_device_stalled") > 0, "the disk does not answer", "quantum doctor"],
    [of("quantum_partitions_over_quota") > 0, "a tenant is over a quota", "see Tenants"],
  ];
  return found.filter(([holds]) => holds).map(([, sentence, next]) => [sentence, next]);
}

function Alerts(props: { last: Sample | undefined; status: BrokerStatus }): JSX.Element {
  const lags = useAsked<Listed<{ partition_id: Wide; lag_bytes: Wide }>>("/v1/lag-alerts?linearizable=false", 15_000);
  const shut = useAsked<Listed<{ partition_id: Wide; node_id: Wide; cause: string }>>("/v1/quarantines?linearizable=false", 15_000);
  const waiting = props.status.partitions.filter((each) => !each.serves || each.waits_for.length > 0);
  const numbers = props.last ? wrongNumbers(props.last) : [];
  const lagging = lags.answer?.items ?? [];
  const quarantined = shut.answer?.items ?? [];
  const calm = !waiting.length && !numbers.length && !lagging.length && !quarantined.length && !props.status.stopped.length;
  return (
    <Card title="What is wrong" wide>
      {calm && <p><Tag kind="good">Nothing</Tag> that this node knows of.</p>}
      {numbers.map(([sentence, next]) => <p><Tag kind="bad">alert</Tag> {sentence}. <span class="quiet">{next}</span></p>)}
      {props.status.stopped.map((each) => <p><Tag kind="bad">stopped</Tag> group {each.group}: {each.cause}</p>)}
      {lagging.map((each) => <p><Tag kind="bad">lag</Tag> group {each.partition_id}: followers are {bytes(each.lag_bytes)} behind</p>)}
      {quarantined.map((each) => <p><Tag kind="bad">quarantine</Tag> group {each.partition_id} on node {each.node_id}: {each.cause}</p>)}
      {waiting.map((each) => (
        <div class="cause wrong">
          <p>{each.tenant}/{each.partition} {each.waits_for.length ? `waits for ${each.waits_for.join(", ")}` : `is not served here (${each.state})`}</p>
          <WhyGroup group={each.group} question="WhyNotLeader" />
        </div>
      ))}
    </Card>
  );
}

export function Overview(): JSX.Element {
  const { problem } = useSamples();
  const status = useAsked<BrokerStatus>("/v1/broker/status", 10_000);
  const last = samples.at(-1);
  const before = samples.at(-1 - WINDOW) ?? samples[0];
  const of = (name: string) => last?.sums.get(name);
  return (
    <>
      {problem && <Problem problem={problem} />}
      {last && before && (
        <Card title="Now" wide>
          <dl>
            <Fact name="Messages in">{rate(growth("quantum_publishes_received_total", before, last) ?? 0)}</Fact>
            <Fact name="Messages out">{rate(growth("quantum_publishes_sent_total", before, last) ?? 0)}</Fact>
            <Fact name="Acknowledged, 99 %">{span(percentile("quantum_publish_ack_seconds", 0.99, before, last))}</Fact>
            <Fact name="Clients">{count(of("quantum_connections"))}</Fact>
            <Fact name="Sessions">{count(of("quantum_sessions"))}</Fact>
            <Fact name="Subscriptions">{count(of("quantum_subscriptions"))}</Fact>
            <Fact name="Retained">{count(of("quantum_retained_messages"))}</Fact>
            <Fact name="Log on disk">{bytes(of("clustor_wal_log_bytes"))}</Fact>
            <Fact name="Disk left">{bytes(of("clustor_wal_disk_free_bytes"))}</Fact>
            <Fact name="Dropped">{count(of("quantum_dropped_total"))}</Fact>
          </dl>
        </Card>
      )}
      <Answered asked={status}>{(answer) => <Alerts last={last} status={answer} />}</Answered>
      <Plots />
    </>
  );
}
