/** Shows the pictures of the output folder, or those that were uploaded, the newest first. */
import { useCallback, useEffect, useState } from "react";
import { type FilePage, type ListedFile, listedFiles, pictureAddress } from "../server/files";
import { useDocuments } from "../shell/documents";
import { tell, useLive } from "../shell/live";
import { usePage } from "../shell/page";
import { Filter } from "./Filter";
import "./gallery.css";

const NOTHING: FilePage = { files: [], next: null };
const TYPES = { output: "Results", input: "Uploads" } as const;

export function Gallery() {
  const [type, setType] = useState<ListedFile["type"]>("output");
  const [page, setPage] = useState(NOTHING);
  const [query, setQuery] = useState("");
  const ended = useLive(({ jobs }) => Object.values(jobs.byId).filter((job) => job.ended).length);
  const sessions = useDocuments((documents) => documents.sessions);
  const load = useCallback(
    (before: FilePage) =>
      listedFiles(type, before.next ?? "").then(
        ({ files, next }) => setPage({ files: [...before.files, ...files], next }),
        tell,
      ),
    [type],
  );
  useEffect(() => void load(NOTHING), [load, ended]);

  const nameOf = (job: string) => sessions.find((session) => session.job === job)?.name ?? "";
  const words = query.toLowerCase();
  const shown = page.files.filter(({ name, job }) =>
    `${name} ${nameOf(job)}`.toLowerCase().includes(words),
  );
  const addresses = shown.map((file) => pictureAddress(file));
  return (
    <aside className="side gallery" aria-label="gallery">
      <h2>Pictures</h2>
      <div className="steering">
        {(Object.keys(TYPES) as (keyof typeof TYPES)[]).map((one) => (
          <button type="button" key={one} aria-pressed={type === one} onClick={() => setType(one)}>
            {TYPES[one]}
          </button>
        ))}
      </div>
      <Filter
        label="filter pictures"
        placeholder="filter by name or workflow"
        value={query}
        onValue={setQuery}
      />
      {shown.length === 0 && <p className="empty">no picture is here yet</p>}
      <ul>
        {shown.map((file, at) => (
          <li key={file.name}>
            <button
              type="button"
              title={`${file.name}\n${file.pixels}\n${new Date(1000 * file.modified).toLocaleString()}`}
              onClick={() => usePage.setState({ pictures: { addresses, at } })}
            >
              <img src={pictureAddress(file, 256)} alt={file.name} loading="lazy" />
            </button>
          </li>
        ))}
      </ul>
      {page.next !== null && (
        <button type="button" className="more" onClick={() => void load(page)}>
          Show older ones
        </button>
      )}
    </aside>
  );
}
