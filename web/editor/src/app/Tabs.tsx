import { Plus, Users, X } from "lucide-react";
import { emptyDocument } from "../document/commands";
import { followed } from "../jobs/followed";
import { docOf, useDocuments } from "../state/documents";
import { useLive } from "../state/live";
import { othersText, useOthers } from "../state/presence";

/** The data type of a dragged tab. */
const TAB = "application/x-katz-tab";

export function Tabs() {
  const sessions = useDocuments((documents) => documents.sessions);
  const active = useDocuments((documents) => documents.active);
  const jobs = useLive((live) => live.jobs);
  const others = useOthers((known) => known.others);
  const { show, close, open, reorder, update } = useDocuments.getState();
  return (
    <nav className="tabs" aria-label="documents">
      {sessions.map((session, place) => {
        const status = followed(jobs, session.runs).latest?.status ?? "";
        const there = othersText(others[session.file?.path ?? ""] ?? []);
        const changed = docOf(session) !== session.saved;
        return (
          <span
            className={`tab ${session.id === active ? "active" : ""}`}
            key={session.id}
            draggable
            onDragStart={(event) => event.dataTransfer.setData(TAB, session.id)}
            onDragOver={(event) => {
              if (event.dataTransfer.types.includes(TAB)) event.preventDefault();
            }}
            onDrop={(event) => {
              const moved = event.dataTransfer.getData(TAB);
              const from = sessions.findIndex(({ id }) => id === moved);
              if (from >= 0) reorder(moved, place - from);
            }}
          >
            <button
              type="button"
              aria-current={session.id === active}
              title="double-click renames"
              onClick={() => show(session.id)}
              onAuxClick={(event) => event.button === 1 && close(session.id)}
              onDoubleClick={() => {
                const name = window.prompt("Name", session.name)?.trim();
                if (name) update(session.id, { name });
              }}
            >
              <i className={`dot ${status}`} />
              {session.name}
              {there !== "" && (
                <span
                  className="others"
                  role="img"
                  aria-label={`also open: ${there}`}
                  title={`also open: ${there}`}
                >
                  <Users size={12} />
                </span>
              )}
              {changed && <b title="changed since it was opened or saved"> ●</b>}
            </button>
            <button
              type="button"
              aria-label={`close ${session.name}`}
              onClick={() => close(session.id)}
            >
              <X size={12} />
            </button>
          </span>
        );
      })}
      <button
        type="button"
        className="plain"
        aria-label="new workflow"
        onClick={() => open("workflow", emptyDocument())}
      >
        <Plus size={14} />
      </button>
    </nav>
  );
}
