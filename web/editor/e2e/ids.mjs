// Lists the abilities (P0.01 to P0.42) that no test names, and fails where there are some.
import { readdirSync, readFileSync } from "node:fs";

const root = new URL("../", import.meta.url);
const tests = ["src", "e2e"]
  .flatMap((folder) =>
    readdirSync(new URL(`${folder}/`, root), { recursive: true, encoding: "utf8" }).map(
      (name) => `${folder}/${name}`,
    ),
  )
  .filter((name) => /\.(test|spec)\.ts$/.test(name))
  .map((name) => readFileSync(new URL(name, root), "utf8"))
  .join("\n");
const all = Array.from({ length: 42 }, (_, number) => `P0.${String(number + 1).padStart(2, "0")}`);
const missing = all.filter((id) => !tests.includes(id));
console.log(
  `${all.length - missing.length} of ${all.length} are named by a test; not: ${missing.join(", ") || "none"}`,
);
if (missing.length > 0) process.exit(1);
