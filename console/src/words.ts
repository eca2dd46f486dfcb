/** Numbers, spans and moments in words that people read. */

import type { Wide } from "./api";

export function count(value: Wide | null | undefined): string {
  return value == null ? "–" : Number(value).toLocaleString("en");
}

export function bytes(value: Wide | null | undefined): string {
  if (value == null) return "–";
  let left = Number(value);
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (left < 1024) return `${left < 10 && unit !== "B" ? left.toFixed(1) : Math.round(left)} ${unit}`;
    left /= 1024;
  }
  return `${Math.round(left)} PiB`;
}

export function span(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}

export function rate(perSecond: number | null | undefined): string {
  if (perSecond == null || !Number.isFinite(perSecond)) return "–";
  return `${perSecond < 10 ? perSecond.toFixed(1) : count(Math.round(perSecond))}/s`;
}

/** A moment of the wall clock, in ms since 1970; 0 is 'never'. */
export function moment(ms: Wide | null | undefined): string {
  if (ms == null || Number(ms) === 0) return "–";
  return new Date(Number(ms)).toISOString().replace("T", " ").slice(0, 19) + "Z";
}

export function payloadText(payload: { text?: string | null; base64?: string | null } | null): string {
  if (payload == null) return "–";
  return payload.text ?? (payload.base64 == null ? "" : `base64: ${payload.base64}`);
}
