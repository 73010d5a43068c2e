/** Shows the pictures of the output folder, or those that were uploaded, the newest first. */
import { useCallback, useEffect, useState } from "react";
import { nodesOf } from "../document/model";
import { type FilePage, type ListedFile, listedFiles, pictureAddress } from "../server/files";
import { docOf, useDocuments } from "../shell/documents";
import { tell, useLive } from "../shell/live";
import { usePage } from "../shell/page";
import { useSettings } from "../shell/settings";
import { Filter } from "./Filter";
import { nodesIn, shownFiles, workflowsOf } from "./shown";
import "./gallery.css";

const NOTHING: FilePage = { files: [], next: null };
const TYPES = { output: "Results", input: "Uploads" } as const;
/** While fewer pictures than that are found, older ones are asked for, up to so many files. */
const ENOUGH = 12;
const MOST_LOOKED_THROUGH = 1_000;

export function Gallery() {
  const [type, setType] = useState<ListedFile["type"]>("output");
  const [page, setPage] = useState(NOTHING);
  const [words, setWords] = useState("");
  const [workflow, setWorkflow] = useState("");
  const [node, setNode] = useState("");
  const ended = useLive(({ jobs }) => Object.values(jobs.byId).filter((job) => job.ended).length);
  const picking = usePage((shows) => shows.picking);
  const sessions = useDocuments((documents) => documents.sessions);
  const names = useSettings((settings) => settings.names);
  const load = useCallback(
    (before: FilePage) =>
      listedFiles(type, before.next ?? "").then(
        ({ files, next }) => setPage({ files: [...before.files, ...files], next }),
        tell,
      ),
    [type],
  );
  useEffect(() => void load(NOTHING), [load, ended]);

  const nameOf = (id: string) =>
    sessions.find((session) => session.workflow === id)?.name ??
    names[id] ??
    (id === "" ? "" : `unnamed ${id.slice(0, 8)}`);
  const titleOf = (id: string) => {
    const session = sessions.find(({ name }) => name === workflow);
    const own = session && nodesOf(docOf(session)).find((one) => one.id === id);
    return own === undefined ? `#${id}` : `${own.title || own.type} #${id}`;
  };
  const shown = shownFiles(page.files, { words, workflow, node }, nameOf);
  const filtered = words + workflow + node !== "";
  useEffect(() => {
    if (!filtered || shown.length >= ENOUGH || page.next === null) return;
    if (page.files.length < MOST_LOOKED_THROUGH) void load(page);
  }, [filtered, shown.length, page, load]);

  const pick = (address: string) => {
    const [first] = picking ?? [];
    if (first === undefined) return usePage.setState({ picking: [address] });
    usePage.setState({ picking: null, compared: first === address ? null : [first, address] });
  };
  const addresses = shown.map((file) => pictureAddress(file));
  const nodes = nodesIn(page.files, workflow, nameOf);
  return (
    <aside className="side gallery" aria-label="gallery">
      <h2>Pictures</h2>
      <div className="steering">
        {(Object.keys(TYPES) as (keyof typeof TYPES)[]).map((one) => (
          <button
            type="button"
            key={one}
            aria-pressed={type === one}
            onClick={() => {
              setType(one);
              setWorkflow("");
              setNode("");
            }}
          >
            {TYPES[one]}
          </button>
        ))}
        <button
          type="button"
          aria-pressed={picking !== null}
          onClick={() => usePage.setState({ picking: picking === null ? [] : null })}
        >
          {picking === null ? "Compare two" : picking.length === 0 ? "Pick one" : "Pick another"}
        </button>
      </div>
      <Filter
        label="filter pictures"
        placeholder="filter by name or workflow"
        value={words}
        onValue={setWords}
      />
      {type === "output" && (
        <div className="filters">
          <select
            aria-label="of the workflow"
            value={workflow}
            onChange={(event) => {
              setWorkflow(event.target.value);
              setNode("");
            }}
          >
            <option value="">all workflows</option>
            {workflowsOf(page.files, nameOf).map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
          <select
            aria-label="of the node"
            value={node}
            disabled={nodes.length === 0}
            onChange={(event) => setNode(event.target.value)}
          >
            <option value="">all nodes</option>
            {nodes.map((id) => (
              <option key={id} value={id}>
                {titleOf(id)}
              </option>
            ))}
          </select>
        </div>
      )}
      {shown.length === 0 && (
        <p className="empty">{filtered ? "no picture is like that" : "no picture is here yet"}</p>
      )}
      <ul>
        {shown.map((file, at) => (
          <li key={file.name}>
            <button
              type="button"
              title={[file.name, nameOf(file.workflow), file.pixels, timeOf(file)]
                .filter(Boolean)
                .join("\n")}
              className={picking?.includes(addresses[at] ?? "") ? "picked" : ""}
              onClick={() =>
                picking === null
                  ? usePage.setState({ pictures: { addresses, at } })
                  : pick(addresses[at] ?? "")
              }
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

function timeOf({ modified }: ListedFile): string {
  return new Date(1000 * modified).toLocaleString();
}
