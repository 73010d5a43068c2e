/** Formats times, sizes, stages and spans, and assigns colours to devices. */
import type { Span, Timeline } from "./plan";

const SHORT: Readonly<Record<string, string>> = {
  unet_encoder: "enc",
  unet_mid: "mid",
  unet_decoder: "dec",
  controlnet: "cn",
  guidance: "cfg",
};

export function shortName(stage: string): string {
  return SHORT[stage] ?? stage.replaceAll("_", " ");
}

const COLOURS = 8;

/** Returns the classes for a device's colour, with stripes from the ninth device on. */
export function deviceLook(device: number): string {
  return `device-${device % COLOURS} ${device < COLOURS ? "" : "striped"}`;
}

export function bytesText(value: number): string {
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} MB`;
  return value >= 1e3 ? `${(value / 1e3).toFixed(0)} kB` : `${value} B`;
}

/** Formats a time in s, ms or µs. */
export function timeText(value: number): string {
  if (value >= 1) return `${value.toFixed(2)} s`;
  return value >= 0.001 ? `${(1e3 * value).toFixed(1)} ms` : `${(1e6 * value).toFixed(0)} µs`;
}

/** Describes a span and its row: `mid 5.mid ×2 on cpu:0`. */
export function namedIn({ stage, what, row }: Span, { rows }: Timeline): string {
  return `${shortName(stage) || "sending"} ${what} on ${rows[row]?.replace("->", "→")}`;
}

/** Describes a span, its time, and the span that it waited for. */
export function wordsOf(span: Span, timeline: Timeline): string {
  const waited = span.after === null ? undefined : timeline.spans[span.after];
  return `${namedIn(span, timeline)}, evaluation ${span.evaluation}: ${timeText(span.seconds)}${waited ? `; waited for ${namedIn(waited, timeline)}` : ""}`;
}

/** Formats a ratio as a signed percentage above 1. */
export function moreText(ratio: number): string {
  const percent = 100 * (ratio - 1);
  return `${percent < 0 ? "−" : "+"}${Math.abs(percent).toFixed(percent > -1 && percent < 1 ? 1 : 0)} %`;
}
