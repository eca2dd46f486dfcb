/** A live plot; what it shows last is said in words too. */

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Line {
  name: string;
  values: (number | null)[];
}

const COLORS = ["--line-1", "--line-2", "--line-3"];
const HEIGHT = 170;

function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function clock(seconds: number): string {
  return new Date(seconds * 1000).toTimeString().slice(0, 8);
}

function options(lines: Line[], width: number, show: (value: number) => string): uPlot.Options {
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--edge"), width: 1 }, ticks: { show: false } };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.15 : 1] } },
    axes: [{ ...axis, values: (_plot, ticks) => ticks.map(clock) }, { ...axis, size: 64, values: (_plot, ticks) => ticks.map(show) }],
    series: [
      {},
      ...lines.map((line, nth) => ({
        label: line.name,
        stroke: color(COLORS[nth % COLORS.length] ?? ""),
        width: 2,
        points: { show: false },
      })),
    ],
  };
}

export function Plot(props: {
  title: string;
  times: number[];
  lines: Line[];
  show: (value: number) => string;
}): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  useEffect(() => {
    const box = place.current;
    if (!box) return;
    const made = new uPlot(options(props.lines, box.clientWidth || 300, props.show), [[], ...props.lines.map(() => [])], box);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: box.clientWidth || 300, height: HEIGHT }));
    watch.observe(box);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, []);
  useEffect(() => {
    plot.current?.setData([props.times, ...props.lines.map((line) => line.values)]);
  }, [props.times.length, props.times.at(-1)]);
  return (
    <figure class="card">
      <figcaption>
        <h2>{props.title}</h2>
        <p class="legend">
          {props.lines.map((line, nth) => {
            const last = line.values.at(-1);
            return <span class={`key key-${nth + 1}`}>{line.name}: <b>{last == null ? "–" : props.show(last)}</b></span>;
          })}
        </p>
      </figcaption>
      <div ref={place} class="plot" aria-hidden="true" />
    </figure>
  );
}
