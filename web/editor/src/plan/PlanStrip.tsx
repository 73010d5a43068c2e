import type { Plan } from "./model/plan";
import { deviceLook, shortName, timeText } from "./model/words";

/** Draws a cell for each call of an evaluation, as wide as its time, in its device's colour. */
export function PlanStrip({ plan }: { readonly plan: Plan }) {
  const shown = plan.cells.filter(({ seconds }) => seconds > 0);
  return (
    <figure className="strip">
      <div>
        {shown.map((cell) => (
          <span
            key={`${cell.segment} ${cell.stage}`}
            className={`cell ${deviceLook(cell.device)} ${cell.stale ? "stale" : ""}`}
            style={{ flexGrow: 1e6 * cell.seconds }}
            title={`${cell.stage}${cell.branches > 1 ? `, ${cell.branches} branches in one call` : ""}, ${timeText(cell.seconds)} on ${plan.devices[cell.device]}${cell.stale ? ", stale" : ""}`}
          >
            {shortName(cell.stage)}
            {cell.branches > 1 ? ` ×${cell.branches}` : ""}
          </span>
        ))}
      </div>
      <figcaption>
        {timeText(plan.period)} per evaluation, predicted · {plan.devices.join(", ")}
      </figcaption>
    </figure>
  );
}
