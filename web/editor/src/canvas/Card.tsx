/** Draws one node: its sockets, widgets, how far it is, and what it made. */
import { Handle, type NodeProps, Position } from "@xyflow/react";
import { memo, useEffect, useMemo, useState } from "react";
import { placedWidgets } from "../catalog/catalog";
import { BYPASSED, type DocNode, MUTED, subgraphNames } from "../document/model";
import type { NodeRun, Picture } from "../jobs/reducer";
import { type Json, listOf } from "../json";
import { PlanStrip } from "../plan/PlanStrip";
import { planOf } from "../plan/plan";
import { addressOf, pictureOf } from "../server/client";
import { docOf, useDocuments } from "../shell/documents";
import { useLive } from "../shell/live";
import { usePage } from "../shell/page";
import { WidgetRow } from "../widgets/WidgetRow";
import { type CardNode, socketColour } from "./layout";

const NOTES = ["Note", "MarkdownNote"];
const MODES: Readonly<Record<number, string>> = { [MUTED]: "muted", [BYPASSED]: "bypassed" };

export const Card = memo(function Card({ id, data: { node }, selected }: NodeProps<CardNode>) {
  const type = useLive(({ catalog }) => catalog.get(node.type));
  const known = useLive(({ catalog }) => catalog.size > 0);
  const job = useDocuments(
    ({ sessions, active }) => sessions.find((session) => session.id === active)?.job ?? "",
  );
  const subgraph = useDocuments(({ sessions, active }) => {
    const session = sessions.find((one) => one.id === active);
    return session === undefined ? undefined : subgraphNames(docOf(session)).get(node.type);
  });
  const run = useLive(({ jobs }) => jobs.byId[job]?.nodes[id]);
  const failed = useDocuments(({ sessions, active }) => {
    const checked = sessions.find((session) => session.id === active)?.checked;
    return checked?.nodeErrors[id] !== undefined;
  });
  const made = useLive(({ jobs }) => jobs.byId[job]?.plans[id]);
  const plan = useMemo(() => (made === undefined ? null : planOf(made)), [made]);
  const widgets = useMemo(() => placedWidgets(node, type), [node, type]);
  const linked = new Set(node.inputs.filter(({ link }) => link !== null).map(({ name }) => name));
  const sockets = node.inputs.flatMap((input, slot) =>
    input.widget === null || input.link !== null ? [{ input, slot }] : [],
  );
  const rows = Math.max(sockets.length, node.outputs.length);
  const isNote = NOTES.includes(node.type);
  const missing = known && type === undefined && subgraph === undefined && !isNote;
  const state = run?.phase === "failed" || failed ? "failed" : (run?.phase ?? "");
  const classes = ["card", state, MODES[node.mode] ?? "", selected ? "selected" : ""];
  return (
    <article className={classes.join(" ")} data-node={id}>
      <header className="card-title" style={node.colour ? { background: node.colour } : undefined}>
        <span className="name">{node.title || subgraph || type?.title || node.type}</span>
        <Badge run={run} mode={MODES[node.mode]} />
        <span className="id">{id}</span>
      </header>
      {run?.phase === "running" && run.maximum > 1 && (
        <progress value={run.value} max={run.maximum} aria-label="evaluations" />
      )}
      {missing && <p className="missing">{node.type} is not installed here</p>}
      <div className="sockets">
        {Array.from({ length: rows }, (_, row) => {
          const left = sockets[row];
          const right = node.outputs[row];
          return (
            <div className="row" key={left ? `i${left.slot}` : `o${row}`}>
              {left && (
                <span className={`in socket-${socketColour(left.input.type)}`}>
                  <Handle type="target" position={Position.Left} id={`in:${left.slot}`} />
                  <span title={left.input.type}>{left.input.label}</span>
                </span>
              )}
              {right && (
                <span className={`out socket-${socketColour(right.type)}`}>
                  <span title={right.type}>{right.label}</span>
                  <Handle type="source" position={Position.Right} id={`out:${row}`} />
                </span>
              )}
            </div>
          );
        })}
      </div>
      {isNote ? (
        <p className="note">{String(listOf(node.values as Json)[0] ?? "")}</p>
      ) : (
        widgets
          .filter(({ widget }) => !linked.has(widget.name))
          .map((placed) => (
            <WidgetRow
              key={placed.key}
              node={node.id}
              placed={placed}
              after={afterOf(node, placed.key)}
            />
          ))
      )}
      {plan !== null && <PlanStrip plan={plan} />}
      <Results job={job} node={id} />
    </article>
  );
});

function afterOf(node: DocNode, key: number | string): Json | undefined {
  return typeof key === "number" ? listOf(node.values as Json)[key + 1] : undefined;
}

function Badge({
  run,
  mode,
}: {
  readonly run: NodeRun | undefined;
  readonly mode: string | undefined;
}) {
  if (run === undefined) return mode === undefined ? null : <span className="badge">{mode}</span>;
  const words = {
    running: run.maximum > 1 ? `${run.value}/${run.maximum}` : "running",
    done: run.seconds >= 0.005 ? `${run.seconds.toFixed(2)} s` : "done",
    cached: "cached",
    failed: "failed",
  }[run.phase];
  return (
    <span className={`badge ${run.phase}`} title={run.why}>
      {words}
    </span>
  );
}

function Results({ job, node }: { readonly job: string; readonly node: string }) {
  const preview = useLive(({ jobs }) => {
    const shown = jobs.byId[job]?.preview;
    return shown?.node === node ? shown : null;
  });
  const made = useLive(({ jobs }) => jobs.byId[job]?.outputs[node]);
  if (preview !== null) return <Preview picture={preview} />;
  const pictures = ((made?.images ?? []) as readonly Json[]).map(pictureOf);
  const texts = ((made?.text ?? []) as readonly unknown[]).map(String);
  return (
    <>
      {pictures.map(
        (picture) =>
          picture && (
            <button
              type="button"
              className="result"
              key={picture.filename}
              onClick={() => usePage.setState({ picture: addressOf(picture) })}
            >
              <img src={addressOf(picture, 512)} alt={picture.filename} loading="lazy" />
            </button>
          ),
      )}
      {texts.map((text) => (
        <p className="note" key={text}>
          {text}
        </p>
      ))}
    </>
  );
}

function Preview({ picture }: { readonly picture: Picture }) {
  const [address, setAddress] = useState("");
  useEffect(() => {
    const blob = new Blob([picture.image as BlobPart], { type: picture.mediaType });
    const made = URL.createObjectURL(blob);
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [picture]);
  return address === "" ? null : <img className="preview" src={address} alt="preview" />;
}
