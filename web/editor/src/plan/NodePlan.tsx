/** Draws what of the plan stands at a node: the sampler's strip, or a mark on one drawn by hand. */
import { type Mark, marksOf } from "./marks";
import { PlanStrip } from "./PlanStrip";
import type { Plan } from "./plan";
import { timeText } from "./words";
import { useDocuments } from "../shell/documents";
import { useLive } from "../shell/live";
import { usePage } from "../shell/page";
import { plansOf, usePlanning } from "../shell/planning";

export function NodePlan({ job, node }: { readonly job: string; readonly node: string }) {
  const session = useDocuments((documents) => documents.active);
  const shown = usePage((page) => page.overlay);
  const planned = usePlanning(({ bySession }) => bySession[session]);
  const plans = useLive(({ jobs }) => plansOf(planned, jobs.byId[job]));
  if (!shown) return null;
  const look = planned?.old ? "old" : "";
  const own = plans.find(({ sampler }) => sampler === node);
  if (own !== undefined) {
    return (
      <div className={look} title={planned?.old ? "planned for an earlier graph" : undefined}>
        <PlanStrip plan={own} />
        <button
          type="button"
          className="open-step nodrag"
          onClick={() => usePage.setState({ step: { session, node } })}
        >
          Open the step
        </button>
      </div>
    );
  }
  const plan = plans.find((one) => marksOf(one).has(node));
  const mark = plan && marksOf(plan).get(node);
  return mark === undefined || plan === undefined ? null : (
    <Marked mark={mark} plan={plan} look={look} />
  );
}

function Marked({
  mark: { devices, seconds, share, batched, stale },
  plan,
  look,
}: {
  readonly mark: Mark;
  readonly plan: Plan;
  readonly look: string;
}) {
  return (
    <p className={`mark ${look}`}>
      {devices.map((device) => (
        <span key={device}>
          <i className={`swatch device-${device % 8}`} /> {plan.devices[device]}
        </span>
      ))}
      <span>
        {timeText(seconds)} · {(100 * share).toFixed(0)} %
      </span>
      {batched > 1 && <span title="one call with equal ones">×{batched}</span>}
      {stale && <span title="the next evaluation reads what this one makes">one behind</span>}
    </p>
  );
}
