// Checks Grafana dashboards against the published types (@grafana/schema): the dashboard as a whole, and the options and field
// settings of each panel. Usage: node check-dashboard.cjs NODE_MODULES DASHBOARD...
const fs = require("fs");
const path = require("path");

const [modules, ...dashboards] = process.argv.slice(2);
const load = (name) => require(path.resolve(modules, name));
const { createGenerator } = load("ts-json-schema-generator");
const Ajv = load("ajv").default;

const types = path.resolve(modules, "@grafana/schema/dist/types");
const validators = new Map();

// Returns a validator for a type in a file; falsy if the file does not contain the type.
function validator(file, type) {
  const key = `${file} ${type}`;
  if (!validators.has(key)) {
    const source = path.join(types, file);
    const has = fs.existsSync(source) && new RegExp(`export interface ${type}\\b`).test(fs.readFileSync(source));
    const schema = has && createGenerator({ path: source, type, skipTypeCheck: true }).createSchema(type);
    validators.set(key, schema && new Ajv({ strict: false, allErrors: true }).compile(schema));
  }
  return validators.get(key);
}

let faults = 0;
function check(file, type, value, where) {
  const valid = validator(file, type);
  if (!valid || value === undefined || valid(value)) return;
  for (const error of valid.errors) {
    faults += 1;
    console.error(`${where}${error.instancePath}: ${error.message} ${JSON.stringify(error.params)}`);
  }
}

for (const file of dashboards) {
  const dashboard = JSON.parse(fs.readFileSync(file));
  check("raw/dashboard/x/types.gen.d.ts", "Dashboard", dashboard, file);
  for (const panel of dashboard.panels.filter((panel) => panel.type !== "row")) {
    const shape = `raw/composable/${panel.type}/panelcfg/x/types.gen.d.ts`;
    if (!fs.existsSync(path.join(types, shape))) {
      faults += 1;
      console.error(`${file}: panel "${panel.title}": Grafana has no panel type "${panel.type}"`);
      continue;
    }
    check(shape, "Options", panel.options, `${file}: panel "${panel.title}": options`);
    check(shape, "FieldConfig", panel.fieldConfig.defaults.custom, `${file}: panel "${panel.title}": custom`);
  }
}
process.exit(faults === 0 ? 0 : 1);
