/** Lists all node types by category or pack, with their help. A click or drag adds a node. */
import { useEffect, useRef, useState } from "react";
import { type NodeType, offered } from "../catalog/catalog";
import { outputHelp, socketHelp, widgetHelp } from "../catalog/help";
import { grouped, searched } from "../catalog/search";
import { NODE_TYPE, place } from "../commands/addNode";
import { useLive } from "../state/live";
import { usePage } from "../state/page";
import { useSettings } from "../state/settings";
import { Filter } from "../ui/Filter";

export function NodeLibrary() {
  const catalog = useLive((live) => live.catalog);
  const [query, setQuery] = useState("");
  const [help, setHelp] = useState<NodeType | null>(null);
  const [by, setBy] = useState<"category" | "pack">("category");
  const { favourites, toggle } = useSettings();
  const found = searched(catalog, query);
  const row = (type: NodeType) => (
    <li key={type.name}>
      <button
        type="button"
        className="name"
        draggable
        onDragStart={(event) => event.dataTransfer.setData(NODE_TYPE, type.name)}
        onClick={() => place(type.name)}
      >
        {type.title}
      </button>
      <button
        type="button"
        className="plain"
        aria-label={`favourite ${type.title}`}
        aria-pressed={favourites.includes(type.name)}
        onClick={() => toggle(type.name)}
      >
        {favourites.includes(type.name) ? "★" : "☆"}
      </button>
      <button
        type="button"
        className="plain"
        aria-label={`help for ${type.title}`}
        aria-expanded={help === type}
        onClick={() => setHelp(help === type ? null : type)}
      >
        ?
      </button>
      {help === type && <Help type={type} />}
    </li>
  );
  const asked = usePage((page) => page.help);
  const about = catalog.get(asked?.type ?? "");
  const liked = favourites.flatMap((name) => catalog.get(name) ?? []);
  return (
    <aside className="side files library" aria-label="node types">
      {about !== undefined && (
        <section aria-label="help">
          <h2>{about.title}</h2>
          <button
            type="button"
            className="plain"
            onClick={() => usePage.setState({ help: null })}
            aria-label="close the help"
          >
            ×
          </button>
          <Help type={about} input={asked?.input ?? ""} />
        </section>
      )}
      <h2>Node types</h2>
      <Filter label="filter node types" value={query} onValue={setQuery} />
      <label>
        by{" "}
        <select
          aria-label="list by"
          value={by}
          onChange={(event) => setBy(event.target.value === "pack" ? "pack" : "category")}
        >
          <option>category</option>
          <option>pack</option>
        </select>
      </label>
      <button type="button" onClick={() => usePage.setState({ side: "packs" })}>
        Packs
      </button>
      {query !== "" ? (
        <ul>{found.map(row)}</ul>
      ) : (
        <>
          {liked.length > 0 && (
            <details open>
              <summary>favourites</summary>
              <ul>{liked.map(row)}</ul>
            </details>
          )}
          {[...grouped(found, by)].map(([group, types]) => (
            <details key={`${by} ${group}`}>
              <summary>
                {group} <small>{types.length}</small>
              </summary>
              <ul>{types.map(row)}</ul>
            </details>
          ))}
        </>
      )}
    </aside>
  );
}

function Help({ type, input = "" }: { readonly type: NodeType; readonly input?: string }) {
  return (
    <div className="help">
      <p>{type.description || "No description."}</p>
      <p>
        <small>
          {type.name}, from {type.pack}
        </small>
      </p>
      <dl>
        {offered(type).map((socket) => (
          <Line
            key={socket.name}
            name={socket.name}
            what={socketHelp(socket)}
            asked={input === socket.name}
          />
        ))}
        {type.widgets.map((widget) => (
          <Line
            key={widget.name}
            name={widget.name}
            what={widgetHelp(widget)}
            asked={input === widget.name}
          />
        ))}
        {type.outputs.map(({ name }, slot) => (
          <Line key={`out ${name}`} name={`→ ${name}`} what={outputHelp(type, slot, "")} />
        ))}
      </dl>
    </div>
  );
}

/** `asked`: whether the user requested help for this input; its line is scrolled into view. */
function Line({
  name,
  what,
  asked = false,
}: {
  readonly name: string;
  readonly what: string;
  readonly asked?: boolean;
}) {
  const line = useRef<HTMLElement>(null);
  useEffect(() => {
    if (asked) line.current?.scrollIntoView({ block: "nearest" });
  }, [asked]);
  return (
    <>
      <dt className={asked ? "asked" : ""}>{name}</dt>
      <dd ref={line} className={asked ? "asked" : ""}>
        {what}
      </dd>
    </>
  );
}
