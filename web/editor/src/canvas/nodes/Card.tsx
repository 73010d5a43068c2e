/** Draws one node: its sockets, widgets, progress and results. */
import { type NodeProps, NodeResizeControl } from "@xyflow/react";
import { memo, useMemo, useState } from "react";
import { useShallow } from "zustand/react/shallow";
import { type NodeType, type Widget, widgetNamed } from "../../catalog/catalog";
import { handleOf, type Input, inputsOf } from "../../catalog/ends";
import { outputHelp } from "../../catalog/help";
import { shownPlaced } from "../../catalog/promoted";
import { resizeNode } from "../../document/commands";
import type { Doc, DocNode } from "../../document/model";
import { subgraphOf } from "../../document/scope";
import { runOf } from "../../jobs/inside";
import { type Json, listOf, textOf } from "../../json";
import { NodeHeat } from "../../plan/HeatLook";
import { DeviceBar, NodePlan } from "../../plan/NodePlan";
import { noteRender } from "../../renders";
import { activeSession, docOf, useDocuments, useFront } from "../../state/documents";
import { useFollowed, useLive } from "../../state/live";
import { usePage } from "../../state/page";
import { WidgetRow } from "../../widgets/WidgetRow";
import { Outline, useOutline } from "../large";
import type { CardNode } from "../layout";
import { OutputPreview, Results } from "./Results";
import { InputSocket, OutputSocket } from "./Socket";
import { modeName, Title } from "./Title";

const MIN_SIZE = { width: 200, height: 60 };

export const Card = memo(function Card({
  id,
  data: { node },
  selected,
  width,
  height,
}: NodeProps<CardNode>) {
  const { outlined, far } = useOutline(id);
  const { key, failed, isSubgraph } = useFront(
    useShallow((session) => {
      const key = [...session.path, id].join(":");
      return {
        key,
        failed: session.checked?.failing.has(key) === true,
        isSubgraph: subgraphOf(docOf(session), node.type) !== undefined,
      };
    }),
    NO_SESSION,
  );
  const phase = useFollowed(({ shown }) => runOf(shown, key, isSubgraph)?.phase ?? "");
  const virtual = useLive(({ catalog }) => catalog.get(node.type)?.isVirtual === true);
  const pointed = usePage((page) => page.pointed?.node === key);
  const look = [
    "card",
    failed ? "failed" : phase,
    modeName(node.mode),
    selected ? "selected" : "",
    pointed ? "pointed" : "",
    node.collapsed ? "collapsed" : "",
    outlined ? "outlined" : "",
    virtual ? "virtual" : "",
  ];
  const outline = { minHeight: height ?? node.height, borderTopColor: node.colour };
  return (
    <article
      className={look.join(" ")}
      data-node={id}
      {...(outlined ? { style: outline, title: node.title || node.type } : {})}
    >
      <DeviceBar node={key} />
      <NodeHeat node={key} id={id} />
      {outlined ? (
        <Outline node={node} ends={far ? null : (width ?? node.width)} at={key} />
      ) : (
        <Whole node={node} at={key} />
      )}
    </article>
  );
}, looksSame);

/** Compares all that a card shows; its position does not matter. */
function looksSame(one: NodeProps<CardNode>, other: NodeProps<CardNode>): boolean {
  return (
    one.data === other.data &&
    one.selected === other.selected &&
    one.width === other.width &&
    one.height === other.height
  );
}

const NO_SESSION = { key: "", failed: false, isSubgraph: false };

/** `at`: the key of the node in a job. */
function Whole({ node, at }: { readonly node: DocNode; readonly at: string }) {
  const { id } = node;
  noteRender(`node ${id}`);
  const type = useLive(({ catalog }) => catalog.get(node.type));
  const known = useLive(({ catalog }) => catalog.size > 0);
  const subgraph = useFront((session) => subgraphOf(docOf(session), node.type), undefined);
  const session = useFront(({ id: front }) => front, "");
  const peek = useFront(({ peeks }) => peeks[at], undefined);
  const run = useFollowed(({ shown }) => runOf(shown, at, subgraph !== undefined));
  const missing = known && type === undefined && subgraph === undefined;
  const name = node.title || textOf(subgraph?.name) || type?.title || node.type;
  return (
    <>
      <Title node={node} name={name} run={run} />
      {run?.phase === "running" && run.maximum > 1 && (
        <progress value={run.value} max={run.maximum} aria-label="evaluations" />
      )}
      {missing && <p className="missing">{node.type} is not installed here</p>}
      <Body node={node} type={type} subgraph={subgraph} />
      {!node.collapsed && (
        <>
          {subgraph !== undefined && <Enter node={id} />}
          <NodePlan node={at} />
          <Results node={at} />
          {peek && <OutputPreview session={session} node={at} peek={peek} />}
          <NodeResizeControl
            className="resize"
            minWidth={MIN_SIZE.width}
            minHeight={MIN_SIZE.height}
            onResizeEnd={(_, { width, height }) => {
              const session = activeSession();
              if (session !== null)
                useDocuments
                  .getState()
                  .change(session.id, "resize", (graph) =>
                    resizeNode(graph, id, Math.round(width), Math.round(height) - 30),
                  );
            }}
          />
        </>
      )}
    </>
  );
}

/** Draws sockets and widgets. A linked widget shows its link in place of its value. */
const Body = memo(function Body({
  node,
  type,
  subgraph,
}: {
  readonly node: DocNode;
  readonly type: NodeType | undefined;
  readonly subgraph: Doc | undefined;
}) {
  const catalog = useLive((live) => live.catalog);
  const widgets = useMemo(() => shownPlaced(node, subgraph, catalog), [node, subgraph, catalog]);
  const inputs = useMemo(() => inputsOf(node, type), [node, type]);
  const shown = new Set(widgets.map(({ widget }) => widget.name));
  const sockets = inputs.filter(({ widget }) => {
    if (widget === null) return true;
    // an input of an option that is not chosen
    const hidden = type !== undefined && widget.includes(".") && !isLinked(node, widget);
    return !shown.has(widget) && !hidden;
  });
  const rows = Math.max(sockets.length, node.outputs.length);
  const [unfolded, setUnfolded] = useState(false);
  const advanced = widgets.filter(({ widget }) => isFolded(node, widget));
  const growing = widgets.some(({ widget }) => widget.lines);
  return (
    <div className="body" style={growing ? { minHeight: node.height } : undefined}>
      <div className="sockets">
        {Array.from({ length: rows }, (_, row) => {
          const left = sockets[row];
          const right = node.outputs[row];
          return (
            <div className="row" key={left?.name ?? `out ${right?.name}`}>
              {left && <InputSocket input={left} label={labelOf(node, type, left)} />}
              {right && (
                <OutputSocket
                  output={{ node: node.id, slot: row, type: right.type }}
                  label={right.label}
                  help={outputHelp(type, row, right.type)}
                />
              )}
            </div>
          );
        })}
      </div>
      {(unfolded ? widgets : widgets.filter(({ widget }) => !isFolded(node, widget))).map(
        (placed) => (
          <WidgetRow
            key={placed.key}
            node={node.id}
            placed={placed}
            {...handleFor(inputs, placed.widget.name)}
            linked={isLinked(node, placed.widget.name)}
            after={afterOf(node, placed.key)}
          />
        ),
      )}
      {advanced.length > 0 && (
        <button
          type="button"
          className="enter nodrag"
          aria-expanded={unfolded}
          onClick={() => setUnfolded(!unfolded)}
        >
          {unfolded ? "Fewer inputs" : `${advanced.length} advanced`}
        </button>
      )}
    </div>
  );
});

/** Returns whether an input is hidden under "advanced": its type says so and it has no link. */
function isFolded(node: DocNode, { name, options }: Widget): boolean {
  return options.advanced === true && !isLinked(node, name);
}

function handleFor(inputs: readonly Input[], widget: string) {
  const input = inputs.find((one) => one.widget === widget);
  return input === undefined
    ? { handle: null, handleKey: "" }
    : { handle: <InputSocket input={input} />, handleKey: `${handleOf(input)} ${input.type}` };
}

/** Names an input without the prefix of its group or option, unless the user renamed it. */
function labelOf(node: DocNode, type: NodeType | undefined, { slot, name }: Input): string {
  const label = (slot === null ? name : node.inputs[slot]?.label) ?? name;
  const dot = name.lastIndexOf(".");
  if (label !== name || dot < 0) return label;
  const within = name.slice(0, dot);
  const grows = type?.sockets.some(({ group }) => group === within) === true;
  return grows || widgetNamed(type, within) !== undefined ? name.slice(dot + 1) : label;
}

function isLinked(node: DocNode, widget: string): boolean {
  return node.inputs.some((input) => input.widget === widget && input.link !== null);
}

function afterOf(node: DocNode, key: number | string): Json | undefined {
  return typeof key === "number" ? listOf(node.values as Json)[key + 1] : undefined;
}

function Enter({ node }: { readonly node: string }) {
  return (
    <button
      type="button"
      className="enter nodrag"
      onClick={() => {
        const session = activeSession();
        if (session !== null)
          useDocuments.getState().update(session.id, { path: [...session.path, node] });
      }}
    >
      Open the subgraph
    </button>
  );
}
