/**
 * Draws two steady evaluations: a lane for each device and each link that is used, predicted above
 * measured, in one scale.
 */
import { useState } from "react";
import type { MeasuredBar } from "./measured";
import type { Plan, Timeline } from "./plan";
import { shortName, timeText } from "./words";

const WIDTH = 1000;
const LANE = 46;
const HEIGHT = 34;
/** Of a bar where there are two, and where the lower one begins. */
const HALF = 18;
const LOWER = 24;

export function TimelineView({
  plan,
  timeline,
  measured,
}: {
  readonly plan: Plan;
  readonly timeline: Timeline;
  readonly measured: readonly MeasuredBar[];
}) {
  const [shown, setShown] = useState<number | null>(null);
  const length = Math.max(
    timeline.seconds,
    ...measured.map(({ start, seconds }) => start + seconds),
  );
  const scale = WIDTH / (length || 1);
  const height = measured.length > 0 ? HALF : HEIGHT;
  const kindOf = (row: string) => {
    const device = plan.devices.indexOf(row);
    return device < 0 ? "link-span" : `device-${device % 8}`;
  };
  const chosen = shown === null ? undefined : timeline.spans[shown];
  const waited = chosen?.after == null ? undefined : timeline.spans[chosen.after];
  return (
    <figure className="timeline">
      <div className="lanes">
        <ul>
          {timeline.rows.map((row) => (
            <li key={row}>{row.replace("->", "→")}</li>
          ))}
        </ul>
        <svg
          viewBox={`0 0 ${WIDTH} ${LANE * timeline.rows.length}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={`timeline of two evaluations, predicted${measured.length > 0 ? " and measured" : ""}`}
        >
          {timeline.spans.map((span, number) => {
            const x = Math.max(0, span.start) * scale;
            const end = Math.min(timeline.seconds, span.start + span.seconds) * scale;
            const row = timeline.rows[span.row] ?? "";
            return (
              <rect
                key={`${row} ${span.what} ${span.start}`}
                className={`span predicted ${kindOf(row)} ${number === shown ? "shown" : ""} ${chosen?.after === number ? "waited" : ""}`}
                x={x}
                y={LANE * span.row + 4}
                width={Math.max(1.5, end - x)}
                height={height}
                onPointerEnter={() => setShown(number)}
              >
                <title>{`${span.what}, evaluation ${span.evaluation}, ${timeText(span.seconds)}`}</title>
              </rect>
            );
          })}
          {measured.map((bar) => (
            <rect
              key={`${bar.row} ${bar.target} ${bar.start}`}
              className={`span measured ${kindOf(bar.row)}`}
              x={bar.start * scale}
              y={LANE * timeline.rows.indexOf(bar.row) + LOWER}
              width={Math.max(1.5, bar.seconds * scale)}
              height={HALF}
            >
              <title>{`${bar.target}, evaluation ${bar.evaluation}, measured: ${timeText(bar.seconds)}`}</title>
            </rect>
          ))}
          {timeline.boundaries.map((at) => (
            <line
              key={at}
              x1={at * scale}
              x2={at * scale}
              y1={0}
              y2={LANE * timeline.rows.length}
            />
          ))}
        </svg>
      </div>
      <figcaption>
        {chosen === undefined
          ? `evaluations ${timeline.first} and ${timeline.first + 1}: ${timeText(timeline.seconds)}, predicted${measured.length > 0 ? " above, measured below" : ""}`
          : `${shortName(chosen.stage) || "sent"} ${chosen.what}, evaluation ${chosen.evaluation}: ${timeText(chosen.seconds)}${waited ? `; waited for ${waited.what}` : ""}`}
      </figcaption>
    </figure>
  );
}
