/** Lists drafts on the server that are not open here: from closed browsers or other ones. */
import { useCallback, useEffect, useState } from "react";
import { draftName, forgetDraft, storedDrafts } from "../server/drafts";
import type { ListedWorkflow } from "../server/workflows";
import { useDocuments } from "../state/documents";
import { openDraft } from "../state/drafts";
import { notify } from "../state/live";

/** `most`: the maximum number of listed drafts, newest first. */
export function Drafts({ most }: { readonly most?: number }) {
  const [all, setAll] = useState<readonly ListedWorkflow[]>([]);
  const open = useDocuments(({ sessions }) =>
    sessions.map(({ draft }) => draft?.path ?? "").join("\n"),
  );
  const load = useCallback(() => storedDrafts().then(setAll, notify), []);
  useEffect(() => void load(), [load, open]);
  const shown = all.filter(({ path }) => !open.split("\n").includes(path)).slice(0, most);
  if (shown.length === 0) return null;
  return (
    <section className="files drafts" aria-label="drafts">
      <h2>Unsaved drafts</h2>
      <ul>
        {shown.map(({ path, modified }) => (
          <li key={path}>
            <button type="button" className="name" onClick={() => void openDraft(path)}>
              {draftName(path)}
              <small>{new Date(1000 * modified).toLocaleString()}</small>
            </button>
            <button
              type="button"
              className="plain"
              aria-label={`delete the draft ${draftName(path)}`}
              onClick={() => void forgetDraft({ path, version: "" }).then(load, notify)}
            >
              delete
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}
