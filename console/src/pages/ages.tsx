/** How long ago this node's snapshots were made and its log was read again. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { lookText } from "../api";
import { readMetrics, type Sample } from "../metrics";
import { Card, Fact } from "../parts";
import { bytes, count, span } from "../words";

/** The node's numbers, read once. */
export function useNumbers(): Sample | null {
  const [sample, setSample] = useState<Sample | null>(null);
  useEffect(() => {
    lookText("/metrics").then((text) => setSample(readMetrics(text, Date.now() / 1000)), () => setSample(null));
  }, []);
  return sample;
}

export function Ages(): JSX.Element {
  const numbers = useNumbers();
  const of = (name: string) => numbers?.sums.get(name);
  const days = of("clustor_scrub_coverage_age_days");
  return (
    <Card title="Care of its data">
      <dl>
        <Fact name="Newest snapshot">{span(of("clustor_snapshot_age_seconds"))}</Fact>
        <Fact name="Read again within">{days == null ? "–" : span(days * 86_400)}</Fact>
        <Fact name="Read by the scrub">{bytes(of("clustor_scrub_read_bytes_total"))}</Fact>
        <Fact name="Damage found" bad={(of("clustor_scrub_faults_total") ?? 0) > 0}>{count(of("clustor_scrub_faults_total"))}</Fact>
        <Fact name="Log on disk">{bytes(of("clustor_wal_log_bytes"))}</Fact>
        <Fact name="Elections won">{count(of("clustor_raft_elections_won_total"))}</Fact>
      </dl>
    </Card>
  );
}
