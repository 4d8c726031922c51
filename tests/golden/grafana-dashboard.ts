// What a dashboard of ours may hold: Grafana's own types (@grafana/schema 13.2.3, Apache-2.0), with the types of panel
// that we use. grafana-dashboard.schema.json is made of it, in an empty folder that has this file:
//   npm install @grafana/schema@13.2.3 ts-json-schema-generator@2.4.0 typescript@5.9
//   npx ts-json-schema-generator --path grafana-dashboard.ts --type Made --no-type-check --expose none --tsconfig tsconfig.json
// tsconfig.json: {"compilerOptions": {"moduleResolution": "node", "strict": true, "skipLibCheck": true, "baseUrl": ".",
//   "paths": {"@grafana/schema": ["./node_modules/@grafana/schema/dist/types/index.d.ts"]}}}
// Descriptions and defaults were then left out.
import type * as raw from '@grafana/schema/dist/types/raw/dashboard/x/types.gen';
import type * as ts from '@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/types.gen';
import type * as st from '@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/types.gen';
import type * as bg from '@grafana/schema/dist/types/raw/composable/bargauge/panelcfg/x/types.gen';

interface Query { datasource: raw.DataSourceRef; expr: string; refId: string; legendFormat?: string; range?: boolean;
  instant?: boolean; hide?: boolean; format?: 'time_series' | 'table' | 'heatmap'; editorMode?: 'code' | 'builder'; interval?: string }
interface Fields<C> extends Omit<raw.FieldConfigSource, 'defaults'> { defaults: Omit<raw.FieldConfig, 'custom'> & { custom?: C } }
interface Of<T extends string, O, C> extends Omit<raw.Panel, 'type' | 'options' | 'fieldConfig' | 'targets' | 'datasource'> {
  type: T; options: O; fieldConfig: Fields<C>; targets: Query[]; datasource: raw.DataSourceRef; title: string; id: number; gridPos: raw.GridPos }
type Row = Omit<raw.RowPanel, 'panels'> & { panels: [] };
export interface Made extends Omit<raw.Dashboard, 'panels' | 'annotations'> {
  panels: (Row | Of<'timeseries', ts.Options, ts.FieldConfig> | Of<'stat', st.Options, {}> | Of<'bargauge', bg.Options, {}>)[];
}
