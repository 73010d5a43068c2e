/** Says what runs where and why, for each sampler of a job. */
import type { Job } from "../jobs/reducer";
import { PlanStrip } from "./PlanStrip";
import { TimelineView } from "./TimelineView";
import { type Plan, planOf, shortName, timeText } from "./plan";

export function PlanPanel({ job }: { readonly job: Job | null }) {
  const plans = Object.entries(job?.plans ?? {});
  return (
    <aside className="side" aria-label="plan">
      <h2>Plan</h2>
      {plans.length === 0 && (
        <p className="empty">the plan of a sampler stands here once it runs</p>
      )}
      {plans.map(([node, raw]) => (
        <Sampler key={node} node={node} plan={planOf(raw)} spent={job?.nodes[node]?.seconds ?? 0} />
      ))}
    </aside>
  );
}

function Sampler({
  node,
  plan,
  spent,
}: {
  readonly node: string;
  readonly plan: Plan;
  readonly spent: number;
}) {
  const best = plan.alternatives.find(({ chosen }) => chosen) ?? plan.alternatives[0];
  return (
    <section>
      <h3>Sampler #{node}</h3>
      <PlanStrip plan={plan} />
      {plan.timeline !== null && <TimelineView plan={plan} timeline={plan.timeline} />}
      <dl>
        <dt>predicted</dt>
        <dd>{timeText(plan.planned)}</dd>
        {spent > 0 && (
          <>
            <dt>took, models and all</dt>
            <dd>{timeText(spent)}</dd>
          </>
        )}
        <dt>longest path alone</dt>
        <dd>{timeText(plan.ideal)}</dd>
        <dt>one call after another</dt>
        <dd>{timeText(plan.sequential)}</dd>
        <dt>once a request</dt>
        <dd>{plan.hoisted} calls</dd>
        <dt>computes in</dt>
        <dd>{plan.dtype}</dd>
      </dl>
      <p>Bound by {plan.binding}.</p>
      <h4>What was weighed</h4>
      <ol className="weighed">
        {plan.alternatives.map(({ name, seconds, chosen }) => (
          <li key={name} className={chosen ? "chosen" : ""}>
            <span>
              {chosen ? "✓ " : ""}
              {name}
            </span>
            <span>
              {timeText(seconds)}
              {!chosen && best && best.seconds > 0
                ? ` (+${(100 * (seconds / best.seconds - 1)).toFixed(0)} %)`
                : ""}
            </span>
          </li>
        ))}
      </ol>
      <h4>Calls of an evaluation</h4>
      <table>
        <tbody>
          {plan.cells.map((cell) => (
            <tr key={`${cell.segment} ${cell.stage}`}>
              <td>
                <i className={`swatch device-${cell.device % 8}`} /> {plan.devices[cell.device]}
              </td>
              <td title={cell.stage}>
                {shortName(cell.stage)}
                {cell.branches > 1 ? ` ×${cell.branches}` : ""}
                {cell.stale ? ", one behind" : ""}
              </td>
              <td>{timeText(cell.seconds)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {plan.notes.map((note) => (
        <p className="remark" key={note}>
          {note}
        </p>
      ))}
    </section>
  );
}
