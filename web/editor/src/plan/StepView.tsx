/**
 * Opens a sampler step, read-only: the computations of an evaluation, their devices and transfers.
 */
import {
  type Edge,
  Handle,
  type Node,
  type NodeProps,
  Position,
  ReactFlow,
  ReactFlowProvider,
  useReactFlow,
  useStore,
} from "@xyflow/react";
import { memo, useEffect, useMemo, useRef, useState } from "react";
import { type Pointed, usePage } from "../state/page";
import { type Critical, criticalOf } from "./model/critical";
import type { Plan } from "./model/plan";
import {
  BEGIN,
  type Box,
  type DrawnEdge,
  FINISH,
  type Step,
  stepOf,
  variantAt,
} from "./model/step";
import { bytesText, deviceLook, shortName, timeText } from "./model/words";
import "./plan.css";

interface Shown {
  readonly kind: "lane" | "segment" | "call" | "operation" | "region-end";
  readonly device: number;
  readonly title: string;
  readonly detail: string;
  readonly look: string;
  /** The operations of the plan that are highlighted with it. */
  readonly operations: readonly string[];
}
type Part = Node<{ readonly shown: Shown }, "part">;

const TYPES = { part: memo(DrawnPart) };
const FIT = { padding: 0.06, maxZoom: 1.2 };

function DrawnPart({ data: { shown } }: NodeProps<Part>) {
  const { kind, device, title, detail, look, operations } = shown;
  const pointed = usePage((page) => operations.includes(page.pointed?.operation ?? ""));
  return (
    <div
      className={`${kind} ${look} ${pointed ? "pointed" : ""} ${deviceLook(device)}`}
      title={`${title} ${detail}`.trim()}
    >
      {kind === "lane" ? <b>{title}</b> : <span>{title}</span>}
      {detail !== "" && <small> {detail}</small>}
      {(kind === "operation" || kind === "region-end") && (
        <>
          <Handle type="target" position={Position.Left} isConnectable={false} />
          <Handle type="source" position={Position.Right} isConnectable={false} />
        </>
      )}
    </div>
  );
}

export function StepView({
  plan,
  title,
  old,
  onClose,
}: {
  readonly plan: Plan;
  readonly title: string;
  readonly old: boolean;
  readonly onClose: () => void;
}) {
  const [evaluation, setEvaluation] = useState(plan.timeline?.first ?? 0);
  const [over, setOver] = useState<string | null>(null);
  const [moved, setMoved] = useState(false);
  const number = variantAt(plan, evaluation);
  const step = useMemo(() => stepOf(plan, number), [plan, number]);
  const critical = useMemo(() => criticalOf(plan, number), [plan, number]);
  const nodes = useMemo(() => partsOf(plan, step, critical), [plan, step, critical]);
  const edges = useMemo(
    () => step.edges.map((edge) => drawn(edge, over, critical.goesOver(edge.from, edge.to))),
    [step, over, critical],
  );
  const mine = useRef<Pointed | null>(null);
  const point = (key: string | null) => {
    setOver(key);
    const operation = step.operations.find((one) => one.key === key)?.id;
    const node = plan.operations.get(operation ?? "")?.node ?? plan.sampler;
    const next = operation === undefined ? null : { operation, node };
    // the pointer may already be on a timeline span, which has set `pointed`
    usePage.setState(({ pointed }) => ({
      pointed: next === null && pointed !== mine.current ? pointed : next,
    }));
    mine.current = next;
  };
  useEffect(() => () => usePage.setState({ pointed: null }), []);
  const last = Math.max(0, plan.evaluations - 1);
  return (
    <section className={`step ${old ? "old" : ""}`} aria-label="opened step">
      <header>
        <button type="button" autoFocus onClick={onClose}>
          ← {title}
        </button>
        <h2>step</h2>
        <div role="tablist" aria-label="evaluations">
          {plan.variants.map((variant, place) => (
            <button
              type="button"
              role="tab"
              key={variant.name}
              aria-selected={place === number}
              onClick={() => setEvaluation(variant.evaluations[0] ?? 0)}
            >
              {variant.evaluations.length === 1 ? "evaluation" : "evaluations"}{" "}
              {ranges(variant.evaluations)}
            </button>
          ))}
        </div>
        <label>
          evaluation {evaluation}
          <input
            type="range"
            min={0}
            max={last}
            value={evaluation}
            onChange={(event) => setEvaluation(Number(event.target.value))}
          />
        </label>
        <span>{timeText(plan.period)} per evaluation, predicted</span>
        <span className="legend">
          {critical.operations.size > 0 && (
            <span title="calls and transfers that set the time of an evaluation">
              <i className="swatch critical" /> critical path
            </span>
          )}
          {plan.devices.map((device, place) => (
            <span key={device}>
              <i className={`swatch ${deviceLook(place)}`} /> {device}
            </span>
          ))}
        </span>
      </header>
      <ReactFlowProvider key={number}>
        <ReactFlow<Part, Edge>
          nodes={nodes}
          edges={edges}
          nodeTypes={TYPES}
          fitView
          fitViewOptions={FIT}
          minZoom={0.1}
          nodesDraggable={false}
          nodesConnectable={false}
          nodesFocusable={false}
          edgesFocusable={false}
          elementsSelectable={false}
          disableKeyboardA11y
          onNodeMouseEnter={(_, { id }) => point(id)}
          onNodeMouseLeave={() => point(null)}
          onMoveStart={(event) => event && setMoved(true)}
          proOptions={{ hideAttribution: true }}
        >
          {!moved && <Fitted />}
        </ReactFlow>
      </ReactFlowProvider>
    </section>
  );
}

/** Fits the view again when its size changes, for example when a panel opens. */
function Fitted() {
  const { fitView } = useReactFlow();
  const width = useStore((flow) => flow.width);
  const height = useStore((flow) => flow.height);
  useEffect(() => {
    if (width > 0 && height > 0) void fitView(FIT);
  }, [fitView, width, height]);
  return null;
}

function part(id: string, box: Box, zIndex: number, shown: Shown): Part {
  const { x, y, width, height } = box;
  const size = { width: 1, height: 1 };
  const linked = shown.kind === "operation" || shown.kind === "region-end";
  return {
    id,
    type: "part",
    position: { x, y },
    width,
    height,
    zIndex,
    data: { shown },
    ...(linked && {
      handles: [
        { type: "target", position: Position.Left, x: 0, y: height / 2, ...size },
        { type: "source", position: Position.Right, x: width, y: height / 2, ...size },
      ],
    }),
  };
}

const NO_OPERATIONS: readonly string[] = [];

function partsOf(plan: Plan, step: Step, critical: Critical): Part[] {
  const stale = new Set(step.edges.flatMap((edge) => (edge.stale ? [edge.source] : [])));
  const end = (id: string, box: Box, title: string) =>
    part(id, box, 4, {
      kind: "region-end",
      device: plan.owner,
      title,
      detail: "",
      look: "",
      operations: NO_OPERATIONS,
    });
  return [
    ...step.lanes.map((lane) =>
      part(`lane ${lane.device}`, lane, 0, {
        kind: "lane",
        device: lane.device,
        title: plan.devices[lane.device] ?? "",
        detail: "",
        look: "",
        operations: NO_OPERATIONS,
      }),
    ),
    ...step.segments.map((segment) =>
      part(`segment ${segment.name}`, segment, 1, {
        kind: "segment",
        device: segment.device,
        title: segment.hoisted ? "once per request" : segment.name,
        detail: timeText(segment.seconds),
        look: segment.hoisted ? "once" : "",
        operations: NO_OPERATIONS,
      }),
    ),
    ...step.calls.map((call) =>
      part(`call ${call.key}`, call, 2, {
        kind: "call",
        device: 0,
        title: `${shortName(call.stage)}${call.operations.length > 1 ? ` ×${call.operations.length}` : ""}`,
        detail: timeText(call.seconds),
        look: call.operations.length > 1 ? "batched" : "",
        operations: call.operations,
      }),
    ),
    ...step.operations.map((operation) => {
      const { label = operation.id, branch = "" } = plan.operations.get(operation.id) ?? {};
      return part(operation.key, operation, 4, {
        kind: "operation",
        device: operation.device,
        title: label,
        detail: branch,
        look: `${stale.has(operation.key) ? "waits" : ""} ${critical.operations.has(operation.id) ? "critical" : ""}`,
        operations: [operation.id],
      });
    }),
    end(BEGIN, step.begin, "step begins"),
    end(FINISH, step.end, "step ends"),
  ];
}

function drawn(edge: DrawnEdge, over: string | null, critical: boolean): Edge {
  const { key, source, target, transfer, stale, delay, bytes, input } = edge;
  const classes = [
    "flow",
    transfer === null ? "" : "transfer",
    edge.hoisted ? "once" : "",
    stale ? "stale" : delay > 0 ? "late" : "",
    critical && !stale ? "critical" : "",
    source === over || target === over ? "lit" : "",
  ];
  const words = [
    ...(transfer === null ? [] : [`${bytesText(bytes)} · ${timeText(transfer.seconds)}`]),
    ...(stale ? ["from the previous evaluation"] : delay > 0 ? [`${delay} evaluation ago`] : []),
  ];
  return {
    id: key,
    source,
    target,
    className: classes.join(" "),
    zIndex: edge.hoisted ? 0 : 3,
    ariaLabel: `${input}, ${bytesText(bytes)}${words.length > 0 ? `, ${words.join(", ")}` : ""}`,
    ...(words.length > 0 && (source === over || target === over || stale)
      ? { label: words.join(", ") }
      : {}),
  };
}

/** Formats numbers as ranges: 0–9, 12. */
function ranges(numbers: readonly number[]): string {
  const found: [number, number][] = [];
  for (const number of numbers) {
    const last = found.at(-1);
    if (last !== undefined && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  const shown = found
    .slice(0, 3)
    .map(([first, last]) => (first === last ? first : `${first}–${last}`));
  return `${shown.join(", ")}${found.length > 3 ? " …" : ""}`;
}
