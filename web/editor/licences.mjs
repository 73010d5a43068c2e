// Writes what the built editor is made of, with licences, to public/licences.txt.
import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";

const ALLOWED = ["MIT", "ISC", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "MPL-2.0", "0BSD"];
const folders = execFileSync("npm", ["ls", "--omit=dev", "--all", "--parseable"], {
  encoding: "utf8",
  stdio: ["ignore", "pipe", "ignore"],
})
  .trim()
  .split("\n")
  .slice(1)
  .filter((folder) => !folder.includes("node_modules/@types/"));
const parts = [...new Set(folders)].sort().map((folder) => {
  const { name, version, license } = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  if (!ALLOWED.includes(license)) throw new Error(`${name}: licence ${license}`);
  const file = existsSync(folder) && readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
  return `${name} ${version}, ${license}\n\n${file ? readFileSync(`${folder}/${file}`, "utf8").trim() : ""}\n`;
});
writeFileSync(new URL("public/licences.txt", import.meta.url), parts.join("\n----\n\n"));
