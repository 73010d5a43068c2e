/** Lists the steps of a document, including undone ones. A click goes to a step. */
import { useEffect, useRef } from "react";
import { stepsAround } from "../document/history";
import { type Session, useDocuments } from "../state/documents";

export function HistoryPanel({ session: { id, history } }: { readonly session: Session }) {
  const { steps, earlier, later } = stepsAround(history);
  const present = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    present.current?.scrollIntoView({ block: "nearest" });
  }, [history]);
  return (
    <aside className="side steps" aria-label="undo history">
      <h2>Undo history</h2>
      {earlier > 0 && <p className="remark">{earlier} earlier</p>}
      <ol>
        {steps.map(({ label, path, by }) => (
          <li key={by}>
            <button
              type="button"
              ref={by === 0 ? present : undefined}
              className={by > 0 ? "undone" : ""}
              aria-current={by === 0 ? "step" : undefined}
              onClick={() => useDocuments.getState().travel(id, by)}
            >
              {label}
              {path.length > 0 && <small> in #{path.join(":")}</small>}
              {by > 0 && <small> (undone)</small>}
            </button>
          </li>
        ))}
      </ol>
      {later > 0 && <p className="remark">{later} after these</p>}
    </aside>
  );
}
