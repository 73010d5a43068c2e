/**
 * Draws the bars of a timeline: predicted and measured spans, and gaps in which a device is idle.
 */
import { memo } from "react";
import { type Gap, gapWords } from "./model/gaps";
import type { MeasuredBar } from "./model/measured";
import type { Plan, Timeline } from "./model/plan";
import { deviceLook, timeText, wordsOf } from "./model/words";

export const LANE = 46;
export const HEIGHT = 34;
/** The height of a bar if a lane has two, and the top of the lower one. */
export const HALF = 18;
const LOWER = 24;
export const TOP = 4;

function kindOf(plan: Plan, row: string): string {
  const device = plan.devices.indexOf(row);
  return device < 0 ? "link-span" : deviceLook(device);
}

export const Predicted = memo(function Predicted({
  plan,
  timeline,
  scale,
  least,
  height,
}: {
  readonly plan: Plan;
  readonly timeline: Timeline;
  readonly scale: number;
  readonly least: number;
  readonly height: number;
}) {
  return timeline.spans.map((span, at) => {
    const row = timeline.rows[span.row] ?? "";
    const x = Math.max(0, span.start) * scale;
    const end = Math.min(timeline.seconds, span.start + span.seconds) * scale;
    return (
      <rect
        key={`${row} ${span.what} ${span.start}`}
        data-span={at}
        className={`span predicted ${kindOf(plan, row)}`}
        x={x}
        y={LANE * span.row + TOP}
        width={Math.max(least, end - x)}
        height={height}
      >
        <title>{wordsOf(span, timeline)}</title>
      </rect>
    );
  });
});

export const Measured = memo(function Measured({
  plan,
  rows,
  bars,
  scale,
  least,
}: {
  readonly plan: Plan;
  readonly rows: readonly string[];
  readonly bars: readonly MeasuredBar[];
  readonly scale: number;
  readonly least: number;
}) {
  return bars.map((bar) => (
    <rect
      key={`${bar.row} ${bar.target} ${bar.start}`}
      className={`span measured ${kindOf(plan, bar.row)}`}
      x={bar.start * scale}
      y={LANE * rows.indexOf(bar.row) + LOWER}
      width={Math.max(least, bar.seconds * scale)}
      height={HALF}
    >
      <title>{`${bar.target}, evaluation ${bar.evaluation}, measured: ${timeText(bar.seconds)}`}</title>
    </rect>
  ));
});

export function Gaps({
  gaps,
  timeline,
  scale,
}: {
  readonly gaps: readonly Gap[];
  readonly timeline: Timeline;
  readonly scale: number;
}) {
  return gaps.map((gap) => (
    <rect
      key={`${gap.row} ${gap.start}`}
      className="idle"
      x={gap.start * scale}
      y={LANE * gap.row + TOP}
      width={gap.seconds * scale}
      height={HALF}
    >
      <title>{gapWords(gap, timeline)}</title>
    </rect>
  ));
}
