/** Draws two steady evaluations: a lane for each device and each link that is used. */
import { useState } from "react";
import { type Plan, shortName, type Timeline, timeText } from "./plan";

const WIDTH = 1000;
const LANE = 46;
const HEIGHT = 34;

export function TimelineView({
  plan,
  timeline,
}: {
  readonly plan: Plan;
  readonly timeline: Timeline;
}) {
  const [shown, setShown] = useState<number | null>(null);
  const scale = WIDTH / (timeline.seconds || 1);
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
          aria-label="timeline of two evaluations, predicted"
        >
          {timeline.spans.map((span, number) => {
            const x = Math.max(0, span.start) * scale;
            const end = Math.min(timeline.seconds, span.start + span.seconds) * scale;
            const row = timeline.rows[span.row] ?? "";
            const device = plan.devices.indexOf(row);
            const kind = device < 0 ? "link-span" : `device-${device % 8}`;
            return (
              <rect
                key={`${row} ${span.what} ${span.start}`}
                className={`span ${kind} ${number === shown ? "shown" : ""} ${chosen?.after === number ? "waited" : ""}`}
                x={x}
                y={LANE * span.row + 4}
                width={Math.max(1.5, end - x)}
                height={HEIGHT}
                onPointerEnter={() => setShown(number)}
              >
                <title>{`${span.what}, evaluation ${span.evaluation}, ${timeText(span.seconds)}`}</title>
              </rect>
            );
          })}
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
          ? `evaluations ${timeline.first} and ${timeline.first + 1}: ${timeText(timeline.seconds)}, predicted`
          : `${shortName(chosen.stage) || "sent"} ${chosen.what}, evaluation ${chosen.evaluation}: ${timeText(chosen.seconds)}${waited ? `; waited for ${waited.what}` : ""}`}
      </figcaption>
    </figure>
  );
}
