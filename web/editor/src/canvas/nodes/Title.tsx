/** Shows a node's title and progress. Double-click renames the node. */
import { setTitle } from "../../document/commands";
import { BYPASSED, type DocNode, MUTED } from "../../document/model";
import type { NodeRun } from "../../jobs/job";
import { useCanvas } from "../../state/canvas";
import { activeSession, useDocuments } from "../../state/documents";
import { inkOn, pickedOf } from "../../ui/colours";

const MODES: Readonly<Record<number, string>> = { [MUTED]: "muted", [BYPASSED]: "bypassed" };

export function modeName(mode: number): string {
  return MODES[mode] ?? "";
}

export function Title({
  node,
  name,
  run,
}: {
  readonly node: DocNode;
  readonly name: string;
  readonly run: NodeRun | undefined;
}) {
  const renaming = useCanvas((canvas) => canvas.renaming === node.id);
  return (
    <header
      className="card-title"
      style={
        node.colour
          ? { background: node.colour, color: inkOn(pickedOf(node.colour) ?? "") }
          : undefined
      }
      onDoubleClick={() => useCanvas.setState({ renaming: node.id })}
    >
      {renaming ? (
        <Renaming
          name={name}
          done={(title) => {
            useCanvas.setState({ renaming: null });
            const session = activeSession();
            if (title !== null && title !== name && session !== null)
              useDocuments
                .getState()
                .change(session.id, "rename", (graph) => setTitle(graph, node.id, title));
          }}
        />
      ) : (
        <span className="name" title={name}>
          {name}
        </span>
      )}
      {node.pinned && <span className="badge">pinned</span>}
      <Badge run={run} mode={modeName(node.mode)} />
      <span className="id">{node.id}</span>
    </header>
  );
}

export function Renaming({
  name,
  done,
}: {
  readonly name: string;
  /** Receives null if the name is unchanged. */
  readonly done: (name: string | null) => void;
}) {
  return (
    <input
      className="renaming nodrag"
      aria-label="title"
      defaultValue={name}
      ref={(field) => field?.select()}
      onBlur={(event) => done(event.target.value.trim() || null)}
      onKeyDown={(event) => {
        event.stopPropagation();
        if (event.key === "Enter") event.currentTarget.blur();
        if (event.key === "Escape") done(null);
      }}
    />
  );
}

function Badge({ run, mode }: { readonly run: NodeRun | undefined; readonly mode: string }) {
  if (run === undefined) return mode === "" ? null : <span className="badge">{mode}</span>;
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
