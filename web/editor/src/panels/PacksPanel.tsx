/** Lists node packs with their node types, and why a pack or node type was left out. */
import { useEffect, useState } from "react";
import { packNamed } from "../catalog/catalog";
import { grouped } from "../catalog/search";
import { place } from "../commands/addNode";
import { listedPacks, type Pack } from "../server/packs";
import { notify, useLive } from "../state/live";

export function PacksPanel() {
  const catalog = useLive((live) => live.catalog);
  const [packs, setPacks] = useState<readonly Pack[]>([]);
  useEffect(() => void listedPacks().then(setPacks, notify), [catalog]);
  const types = grouped([...catalog.values()], "pack");
  return (
    <aside className="side files library packs" aria-label="packs">
      <h2>Packs</h2>
      <ul>
        {packs.map(({ name, nodes, scripts, problems }) => (
          <li key={name} className={problems.length > 0 ? "wrong" : ""}>
            <details open={problems.length > 0}>
              <summary>
                {packNamed(name)}{" "}
                <small>
                  {nodes === 1 ? "1 node type" : `${nodes} node types`}
                  {problems.length > 0 && `, ${problems.length} left out`}
                </small>
              </summary>
              {problems.map((problem) => (
                <p key={problem} className="missing">
                  {problem}
                </p>
              ))}
              {scripts && (
                <p className="remark">The pack's scripts for ComfyUI's front end do not run.</p>
              )}
              <ul>
                {(types.get(packNamed(name)) ?? []).map((type) => (
                  <li key={type.name}>
                    <button type="button" className="name" onClick={() => place(type.name)}>
                      {type.title}
                    </button>
                  </li>
                ))}
              </ul>
            </details>
          </li>
        ))}
      </ul>
    </aside>
  );
}
