import { jumpTo } from "../dialogs/Find";
import { nodesOf } from "../document/model";
import { graphsOf } from "../document/scope";
import type { Job } from "../jobs/job";
import { docOf, type Session } from "../state/documents";
import { problemsOf } from "./problems";

const MAX_SHOWN = 8;

export function Problems({
  session,
  job,
}: {
  readonly session: Session;
  readonly job: Job | null;
}) {
  const nodes = nodesOf(docOf(session));
  const found = nodes.length === 0 ? [] : problemsOf(session.checked, job);
  const notes = [...session.notes, ...(session.checked?.notes ?? []), ...(job?.warnings ?? [])];
  if (found.length === 0 && notes.length === 0) return null;
  const named = new Map(
    graphsOf(docOf(session)).flatMap(({ path, graph }) =>
      nodesOf(graph).map(
        (node) => [[...path, node.id].join(":"), node.title || node.type] as const,
      ),
    ),
  );
  return (
    <aside className="problems" aria-label="problems">
      {found.length > 0 && <h2>{found.length === 1 ? "1 problem" : `${found.length} problems`}</h2>}
      <ul>
        {found.slice(0, MAX_SHOWN).map(({ node, input, line }) => (
          <li key={`${node} ${input} ${line}`}>
            {named.has(node) ? (
              <button type="button" onClick={() => jumpTo(node)}>
                {named.get(node)} #{node}
              </button>
            ) : null}
            <span>{line}</span>
          </li>
        ))}
        {found.length > MAX_SHOWN && <li>and {found.length - MAX_SHOWN} more</li>}
        {[...new Set(notes)].slice(0, MAX_SHOWN).map((note) => (
          <li className="remark" key={note}>
            {note}
          </li>
        ))}
      </ul>
    </aside>
  );
}
