/** Shows the images of the output folder or the uploaded ones, newest first. */
import { useCallback, useEffect, useState } from "react";
import { nodesOf } from "../../document/model";
import { type FilePage, type ListedFile, listedFiles, pictureAddress } from "../../server/files";
import { docOf, useDocuments } from "../../state/documents";
import { notify, useLive } from "../../state/live";
import { usePage } from "../../state/page";
import { useSettings } from "../../state/settings";
import { Filter } from "../../ui/Filter";
import { Marked } from "./Marked";
import { nodesIn, shownFiles, workflowsOf } from "./shown";
import { Tile } from "./Tile";
import { useTrash } from "./useTrash";
import "./gallery.css";

const NOTHING: FilePage = { files: [], next: null };
const TYPES = { output: "Results", input: "Uploads" } as const;
/**
 * If a filter shows fewer images than this, older files are loaded, up to a maximum number of
 * files.
 */
const MIN_LISTED_FILES = 12;
const MAX_SEARCHED_FILES = 1_000;

export function Gallery() {
  const [type, setType] = useState<ListedFile["type"]>("output");
  const [page, setPage] = useState(NOTHING);
  const [words, setWords] = useState("");
  const [workflow, setWorkflow] = useState("");
  const [node, setNode] = useState("");
  const [marked, setMarked] = useState<ReadonlySet<string>>(new Set());
  const starredOnly = usePage((shows) => shows.starred);
  const { names, stars, star } = useSettings();
  const ended = useLive(({ jobs }) => Object.values(jobs.byId).filter((job) => job.ended).length);
  const picking = usePage((shows) => shows.picking);
  const sessions = useDocuments((documents) => documents.sessions);
  const load = useCallback(
    (before: FilePage) =>
      listedFiles(type, before.next ?? "").then(
        ({ files, next }) => setPage({ files: [...before.files, ...files], next }),
        notify,
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
  const starred = new Set(stars);
  const shown = shownFiles(page.files, { words, workflow, node }, nameOf).filter(
    (file) => !starredOnly || starred.has(pictureAddress(file)),
  );
  const filtered = starredOnly || words + workflow + node !== "";
  useEffect(() => {
    if (!filtered || shown.length >= MIN_LISTED_FILES || page.next === null) return;
    if (page.files.length < MAX_SEARCHED_FILES) void load(page);
  }, [filtered, shown.length, page, load]);

  const pick = (address: string) => {
    const [first] = picking ?? [];
    if (first === undefined) return usePage.setState({ picking: [address] });
    usePage.setState({ picking: null, compared: first === address ? null : [first, address] });
  };
  const addresses = shown.map((file) => pictureAddress(file));
  const chosen = addresses.filter((address) => marked.has(address));
  const { deleted, trash, restore } = useTrash(() => void load(NOTHING));
  const mark = (address: string) =>
    setMarked(
      new Set(
        [...marked].filter((one) => one !== address).concat(marked.has(address) ? [] : address),
      ),
    );
  const remove = async (which: readonly string[]) => {
    const gone = page.files.filter((file) => which.includes(pictureAddress(file)));
    if (
      !(await trash(
        type,
        gone.map(({ name }) => name),
      ))
    )
      return;
    setPage(({ files, next }) => ({ files: files.filter((file) => !gone.includes(file)), next }));
    setMarked(new Set());
  };
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
              setMarked(new Set());
              setWorkflow("");
              setNode("");
            }}
          >
            {TYPES[one]}
          </button>
        ))}
        <button
          type="button"
          aria-pressed={starredOnly}
          onClick={() => usePage.setState({ starred: !starredOnly })}
        >
          Starred
        </button>
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
            aria-label="workflow"
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
            aria-label="node"
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
        <p className="empty">{filtered ? "No pictures match the filter" : "no pictures yet"}</p>
      )}
      {chosen.length > 0 && (
        <Marked
          addresses={chosen}
          onTrash={() => void remove(chosen)}
          onNone={() => setMarked(new Set())}
        />
      )}
      {deleted !== null && (
        <p className="steering" role="status">
          {deleted.names.length === 1 ? "1 picture is" : `${deleted.names.length} pictures are`} in
          the trash
          <button type="button" onClick={() => void restore()}>
            Put back
          </button>
        </p>
      )}
      <ul>
        {shown.map((file, at) => {
          const address = addresses[at] ?? "";
          return (
            <Tile
              key={file.name}
              name={file.name}
              title={[file.name, nameOf(file.workflow), file.pixels, timeOf(file)]
                .filter(Boolean)
                .join("\n")}
              address={address}
              thumbnail={pictureAddress(file, 256)}
              picked={picking?.includes(address) === true}
              marked={marked.has(address)}
              starred={starred.has(address)}
              carries={chosen}
              onOpen={() =>
                picking === null ? usePage.setState({ pictures: { addresses, at } }) : pick(address)
              }
              onMark={() => mark(address)}
              onStar={() => star([address], !starred.has(address))}
              onTrash={() => void remove(marked.has(address) ? chosen : [address])}
            />
          );
        })}
      </ul>
      {page.next !== null && (
        <button type="button" className="more" onClick={() => void load(page)}>
          Show older pictures
        </button>
      )}
    </aside>
  );
}

function timeOf({ modified }: ListedFile): string {
  return new Date(1000 * modified).toLocaleString();
}
