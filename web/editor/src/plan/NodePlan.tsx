/**
 * Draws a node's part of the plan: its devices, the strip of a sampler, or the mark of a node in a
 * loop drawn by hand.
 */
import { useDocuments } from "../state/documents";
import { useFollowed } from "../state/live";
import { usePage } from "../state/page";
import { plansOf } from "../state/planning";
import { type Mark, marksOf, placesOf } from "./model/marks";
import type { Plan } from "./model/plan";
import { deviceLook, timeText } from "./model/words";
import { PlanStrip } from "./PlanStrip";

const NONE: readonly Plan[] = [];

/** Returns the plans shown over the active document; none if the overlay is off. */
export function useOverlay(): {
  readonly plans: readonly Plan[];
  readonly old: boolean;
} {
  const planned = useDocuments(
    ({ sessions, active }) => sessions.find(({ id }) => id === active)?.planned,
  );
  const shown = usePage((page) => page.overlay);
  const plans = useFollowed((own) => (shown ? plansOf(planned, own.shown) : NONE));
  return { plans, old: planned?.old === true };
}

/** Draws the devices at a node's left edge, in proportion to their compute time. */
export function DeviceBar({ node }: { readonly node: string }) {
  const { plans, old } = useOverlay();
  const plan = plans.find((one) => placesOf(one).has(node));
  const places = plan === undefined ? [] : [...(placesOf(plan).get(node) ?? [])];
  if (plan === undefined || places.length === 0) return null;
  const names = places.map(([device]) => plan.devices[device]).join(", ");
  return (
    <div
      className={`device-bar ${old ? "old" : ""}`}
      role="img"
      aria-label={`computes on ${names}`}
      title={names}
    >
      {places.map(([device, seconds]) => (
        <i key={device} className={deviceLook(device)} style={{ flexGrow: 1e6 * seconds + 1 }} />
      ))}
      <b>{names}</b>
    </div>
  );
}

/** Shows the colour of each device over the graph. */
export function Legend() {
  const { plans, old } = useOverlay();
  const devices = plans[0]?.devices ?? [];
  if (devices.length === 0) return null;
  return (
    <p className={`legend over ${old ? "old" : ""}`} aria-label="devices of the plan" role="note">
      {devices.map((name, device) => (
        <span key={name}>
          <i className={`swatch ${deviceLook(device)}`} /> {name}
        </span>
      ))}
      {old && <span>planned for an earlier graph</span>}
    </p>
  );
}

export function NodePlan({ node }: { readonly node: string }) {
  const session = useDocuments((documents) => documents.active);
  const { plans, old } = useOverlay();
  const look = old ? "old" : "";
  const own = plans.find(({ sampler }) => sampler === node);
  if (own !== undefined) {
    return (
      <div className={look} title={old ? "planned for an earlier graph" : undefined}>
        <PlanStrip plan={own} />
        <button
          type="button"
          className="open-step nodrag"
          onClick={() => usePage.setState({ step: { session, node } })}
        >
          Show the step plan
        </button>
      </div>
    );
  }
  const plan = plans.find((one) => marksOf(one).has(node));
  const mark = plan && marksOf(plan).get(node);
  return mark === undefined || plan === undefined ? null : (
    <Marked
      mark={mark}
      devices={[...(placesOf(plan).get(node)?.keys() ?? [])]}
      plan={plan}
      look={look}
    />
  );
}

function Marked({
  mark: { seconds, share, batched, stale },
  devices,
  plan,
  look,
}: {
  readonly mark: Mark;
  readonly devices: readonly number[];
  readonly plan: Plan;
  readonly look: string;
}) {
  return (
    <p className={`mark ${look}`}>
      {devices.map((device) => (
        <span key={device}>
          <i className={`swatch ${deviceLook(device)}`} /> {plan.devices[device]}
        </span>
      ))}
      <span>
        {timeText(seconds)} · {(100 * share).toFixed(0)} %
      </span>
      {batched > 1 && <span title="equal calls batched into one">×{batched}</span>}
      {stale && <span title="the next evaluation reads this result">stale</span>}
    </p>
  );
}
