// Builds the page into build/: names carry a digest of what is in them, so browsers may keep them.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

rmSync("build", { recursive: true, force: true });
mkdirSync("build", { recursive: true });
const made = await build({
  entryPoints: ["src/main.tsx"],
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  outdir: "build",
  write: false,
});
const names = {};
for (const file of made.outputFiles) {
  const kind = file.path.endsWith(".css") ? "css" : "js";
  const digest = createHash("sha256").update(file.contents).digest("hex").slice(0, 12);
  names[kind] = `app-${digest}.${kind}`;
  writeFileSync(`build/${names[kind]}`, file.contents);
}
const icon = readFileSync("src/icon.svg");
const mark = `icon-${createHash("sha256").update(icon).digest("hex").slice(0, 12)}.svg`;
writeFileSync(`build/${mark}`, icon);
const page = readFileSync("src/index.html", "utf8");
writeFileSync(
  "build/index.html",
  page.replace("{css}", names.css).replace("{js}", names.js).replace("{icon}", mark),
);
const licenses = ["@noble/hashes", "preact", "uplot"].map(
  (name) => `${name}\n\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8")}`,
);
writeFileSync("build/licenses.txt", licenses.join("\n\n"));
