/** Shows the path of the subgraph in view, and leads back out of it. */
import { trail } from "../document/scope";
import { docOf, type Session, useDocuments } from "../state/documents";

export function Trail({ session }: { readonly session: Session }) {
  const names = [session.name, ...trail(docOf(session), session.path)];
  const { update } = useDocuments.getState();
  return (
    <nav className="trail" aria-label="subgraph">
      {names.map((name, depth) =>
        depth === names.length - 1 ? (
          <strong key={session.path[depth - 1]}>{name}</strong>
        ) : (
          <button
            type="button"
            key={session.path[depth - 1] ?? ""}
            onClick={() => update(session.id, { path: session.path.slice(0, depth) })}
          >
            {name}
          </button>
        ),
      )}
    </nav>
  );
}
