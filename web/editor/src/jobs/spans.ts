/** Adds what was measured to a job's spans. */
import { numberFrom, textOf } from "../json";
import type { Job, MeasuredSpan } from "./job";
import { type Fields, fields, numberOrNull, shownAs } from "./parts";

const MOST_SPANS = 4_000;

export function withSpans(spans: Job["spans"], event: Fields): Job["spans"] {
  const node = shownAs(event.node);
  const more = ((event.segments ?? []) as readonly unknown[])
    .map(fields)
    .map((span): MeasuredSpan => ({
      device: textOf(span.device),
      kind: textOf(span.kind),
      target: textOf(span.target),
      peer: textOf(span.peer),
      start: numberFrom(span.start),
      seconds: numberFrom(span.seconds),
      evaluation: numberOrNull(span.evaluation),
    }));
  return { ...spans, [node]: [...(spans[node] ?? []), ...more].slice(-MOST_SPANS) };
}
