/** Colours nodes by their time in the last job, and marks the critical path of the graph. */
import { activeSession, graphOf, type Session, useActive, useDocuments } from "../state/documents";
import { followedBy, useFollowed, useLive } from "../state/live";
import { usePage } from "../state/page";
import { type Heat, heatOf, secondsOf } from "./model/heat";
import { timeText } from "./model/words";

function heatIn(session: Session | null | undefined): Heat | null {
  const runs = followedBy(session).shown?.nodes;
  if (!session || runs === undefined) return null;
  return heatOf(graphOf(session), runs, session.path.map((id) => `${id}:`).join(""));
}

/** Reads from the heat of the graph in view; `otherwise` if heat is not shown. */
export function useHeat<Value extends string | number | boolean>(
  read: (heat: Heat) => Value,
  otherwise: Value,
): Value {
  const shown = usePage((page) => page.heat);
  const look = () => {
    const heat = shown ? heatIn(activeSession()) : null;
    return heat === null ? otherwise : read(heat);
  };
  useDocuments(look);
  return useLive(look);
}

interface HeatedNode {
  /** The node's key in a job, and its id in the graph. */
  readonly node: string;
  readonly id: string;
}

export function NodeHeat(heated: HeatedNode) {
  return usePage((page) => page.heat) ? <ShownHeat {...heated} /> : null;
}

function ShownHeat({ node, id }: HeatedNode) {
  const seconds = useFollowed(({ shown }) => secondsOf(shown?.nodes ?? {}, node));
  const share = useHeat(({ total }) => seconds / (total || 1), -1);
  const heat = useHeat(({ most }) => Math.sqrt(seconds / (most || 1)), 0);
  const critical = useHeat(({ path }) => path.has(id), false);
  if (share < 0) return null;
  return (
    <div className={`heat ${critical ? "critical" : ""}`}>
      <i style={{ opacity: 0.75 * heat }} />
      {seconds > 0 && (
        <b>
          {timeText(seconds)} · {(100 * share).toFixed(0)} %{critical && " · critical path"}
        </b>
      )}
    </div>
  );
}

export function HeatLegend() {
  const session = useActive();
  const shown = usePage((page) => page.heat);
  const ran = useFollowed(({ shown }) => shown?.nodes);
  if (!shown) return null;
  const heat = ran === undefined ? null : heatIn(session);
  return (
    <p className="legend heat-legend" role="note" aria-label="heat">
      {heat === null || heat.total === 0
        ? "run the workflow to see the run time of nodes"
        : `all nodes: ${timeText(heat.total)}, critical path: ${timeText(heat.pathSeconds)}`}
    </p>
  );
}
