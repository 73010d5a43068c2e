/** Shows the plan of each sampler: devices, reasons, predicted and measured times. */
import type { Job, MeasuredSpan } from "../jobs/job";
import { criticalChain } from "../plan/model/critical";
import { gapsOf, gapWords } from "../plan/model/gaps";
import { bars, compared } from "../plan/model/measured";
import type { Plan, Timeline } from "../plan/model/plan";
import { deviceLook, moreText, namedIn, shortName, timeText } from "../plan/model/words";
import { PlanStrip } from "../plan/PlanStrip";
import { TimelineView } from "../plan/TimelineView";
import type { Planned } from "../state/documents";
import { plansOf } from "../state/planning";
import { WhatIf } from "./WhatIf";

const MAX_GAPS = 8;
const NO_SPANS: readonly MeasuredSpan[] = [];

export function PlanPanel({
  planned,
  job,
  onStep,
}: {
  readonly planned: Planned | null;
  readonly job: Job | null;
  readonly onStep: (node: string) => void;
}) {
  const plans = plansOf(planned, job);
  return (
    <aside className="side plan" aria-label="plan">
      <h2>Plan</h2>
      {planned?.old && <p className="old-plan">planned for an earlier graph</p>}
      {plans.length === 0 && <p className="empty">Plans appear here once the graph can run</p>}
      {planned?.notes.map((note) => (
        <p className="remark" key={note}>
          {note}
        </p>
      ))}
      {planned !== null && <WhatIf planned={planned} />}
      {plans.map((plan) => (
        <Sampler
          key={plan.sampler}
          plan={plan}
          spent={job?.nodes[plan.sampler]?.seconds ?? 0}
          spans={job?.spans[plan.sampler] ?? NO_SPANS}
          live={job?.nodes[plan.sampler]?.phase === "running"}
          onStep={onStep}
        />
      ))}
    </aside>
  );
}

function Sampler({
  plan,
  spent,
  spans,
  live,
  onStep,
}: {
  readonly plan: Plan;
  readonly spent: number;
  readonly spans: readonly MeasuredSpan[];
  /** Whether the node is sampling: the timeline then shows the latest measured evaluations. */
  readonly live: boolean;
  readonly onStep: (node: string) => void;
}) {
  const best = plan.alternatives.find(({ chosen }) => chosen) ?? plan.alternatives[0];
  return (
    <section>
      <h3>Sampler #{plan.sampler}</h3>
      <PlanStrip plan={plan} />
      <button type="button" className="open-step" onClick={() => onStep(plan.sampler)}>
        Show the step plan
      </button>
      {plan.timeline !== null && (
        <TimelineView
          plan={plan}
          timeline={plan.timeline}
          measured={bars(spans, live ? Infinity : plan.timeline.first)}
        />
      )}
      <dl>
        <dt>predicted</dt>
        <dd>{timeText(plan.planned)}</dd>
        {spent > 0 && (
          <>
            <dt>total time, including model loading</dt>
            <dd>{timeText(spent)}</dd>
          </>
        )}
        <dt>ideal (longest path)</dt>
        <dd>{timeText(plan.ideal)}</dd>
        <dt>sequential</dt>
        <dd>{timeText(plan.sequential)}</dd>
        <dt>once per request</dt>
        <dd>{plan.before.length} calls</dd>
        <dt>number format</dt>
        <dd>{plan.dtype}</dd>
      </dl>
      <p>Bound by {plan.binding}.</p>
      {plan.timeline !== null && <Chain timeline={plan.timeline} />}
      {plan.timeline !== null && <Idle plan={plan} timeline={plan.timeline} />}
      <h4>Alternatives</h4>
      <ol className="weighed">
        {plan.alternatives.map(({ name, seconds, chosen }) => (
          <li key={name} className={chosen ? "chosen" : ""}>
            <span>
              {chosen ? "✓ " : ""}
              {name}
            </span>
            <span>
              {timeText(seconds)}
              {!chosen && best && best.seconds > 0 ? ` (${moreText(seconds / best.seconds)})` : ""}
            </span>
          </li>
        ))}
      </ol>
      <Segments plan={plan} spans={spans} />
      <h4>Calls of an evaluation</h4>
      <table>
        <tbody>
          {plan.cells.map((cell) => (
            <tr key={`${cell.segment} ${cell.stage}`}>
              <td>
                <i className={`swatch ${deviceLook(cell.device)}`} /> {plan.devices[cell.device]}
              </td>
              <td title={cell.stage}>
                {shortName(cell.stage)}
                {cell.branches > 1 ? ` ×${cell.branches}` : ""}
                {cell.stale ? ", stale" : ""}
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

/** Lists the critical chain of the timeline's last evaluation. */
function Chain({ timeline }: { readonly timeline: Timeline }) {
  const { spans, first } = timeline;
  const chain = criticalChain(timeline).filter((at) => spans[at]?.evaluation === first + 1);
  return (
    <>
      <h4>Critical path of an evaluation</h4>
      <ol className="weighed critical-chain">
        {chain.flatMap((at) => {
          const span = spans[at];
          return span === undefined
            ? []
            : [
                <li key={at}>
                  <span>{namedIn(span, timeline)}</span>
                  <span>{timeText(span.seconds)}</span>
                </li>,
              ];
        })}
      </ol>
    </>
  );
}

/** Lists the gaps in which devices are idle, and their causes. */
function Idle({ plan, timeline }: { readonly plan: Plan; readonly timeline: Timeline }) {
  const gaps = gapsOf(plan, timeline);
  return (
    <>
      <h4>Idle gaps</h4>
      {gaps.length === 0 && <p>No device waits.</p>}
      <ul className="weighed idle-gaps">
        {gaps.slice(0, MAX_GAPS).map((gap) => (
          <li key={`${gap.row} ${gap.start}`}>{gapWords(gap, timeline)}</li>
        ))}
      </ul>
      {gaps.length > MAX_GAPS && <p>and {gaps.length - MAX_GAPS} shorter ones</p>}
    </>
  );
}

/** Lists the predicted and the median measured time of each segment. */
function Segments({
  plan,
  spans,
}: {
  readonly plan: Plan;
  readonly spans: readonly MeasuredSpan[];
}) {
  return (
    <>
      <h4>Segments, predicted and measured</h4>
      <table className="segments">
        <tbody>
          {compared(plan, spans).map(({ segment, device, predicted, measured, far }) => (
            <tr key={segment}>
              <td>
                <i className={`swatch ${deviceLook(device)}`} /> {segment}
              </td>
              <td>{timeText(predicted)}</td>
              <td title={far ? "more than 25 % apart" : undefined}>
                {measured === null ? "–" : timeText(measured)}
                {far ? " ≠" : ""}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}
