/** Lists the workflows saved on the server. */
import { useCallback, useEffect, useState } from "react";
import { openStored, removeStored, renameStored } from "../commands/save";
import { type ListedWorkflow, storedWorkflows } from "../server/workflows";
import { useActive } from "../state/documents";
import { notify } from "../state/live";
import { Filter } from "../ui/Filter";
import { Drafts } from "./Drafts";

export function FilesPanel() {
  const saved = useActive()?.file;
  const [files, setFiles] = useState<readonly ListedWorkflow[]>([]);
  const [query, setQuery] = useState("");
  const [renaming, setRenaming] = useState("");
  const load = useCallback(() => storedWorkflows().then(setFiles, notify), []);
  useEffect(() => void load(), [load, saved]);
  const after = (done: Promise<void>) => void done.then(load, notify);
  const words = query.toLowerCase();
  const shown = files
    .filter(({ path }) => path.toLowerCase().includes(words))
    .sort((one, other) => other.modified - one.modified);
  return (
    <aside className="side files" aria-label="saved workflows">
      <h2>Saved workflows</h2>
      <Filter value={query} onValue={setQuery} />
      {files.length === 0 && <p className="empty">no saved workflows yet</p>}
      <ul>
        {shown.map(({ path, modified }) => (
          <li key={path}>
            {renaming === path ? (
              <input
                autoFocus
                aria-label="new name"
                defaultValue={path.replace(/\.json$/, "")}
                onBlur={() => setRenaming("")}
                onKeyDown={(event) => {
                  if (event.key === "Escape") setRenaming("");
                  if (event.key !== "Enter") return;
                  setRenaming("");
                  after(renameStored(path, event.currentTarget.value));
                }}
              />
            ) : (
              <button type="button" className="name" onClick={() => void openStored(path)}>
                {path.replace(/\.json$/, "")}
                <small>{new Date(1000 * modified).toLocaleString()}</small>
              </button>
            )}
            <button type="button" className="plain" onClick={() => setRenaming(path)}>
              rename
            </button>
            <button type="button" className="plain" onClick={() => after(removeStored(path))}>
              delete
            </button>
          </li>
        ))}
      </ul>
      <Drafts />
    </aside>
  );
}
