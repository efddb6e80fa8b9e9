/* GStreamer's nvarguscamerasrc and nvvidconv, as far as edgert's pipelines go: real elements with pools as small as the
 * real ones have, whose video memory (NVMM) is the process's own. A sensor films what EDGERT_BOX_SCENE has, NV12 of
 * 640x480, frame after frame. Properties and caps: "Accelerated GStreamer" of NVIDIA's Jetson Linux Developer Guide. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <gst/base/gstbasetransform.h>
#include <gst/base/gstpushsrc.h>
#include <gst/gst.h>
#include <gst/video/video.h>

#include "nvbufsurface.h"

#ifndef MEMORY
#define MEMORY SURFACE_ARRAY
#endif
#define SCENE_WIDTH 640
#define SCENE_HEIGHT 480
#define SOURCE_BUFFERS 8
#define NVMM "memory:NVMM"
#define SIZES "format=NV12,width=[16,8192],height=[16,8192],framerate=[0/1,240/1]"
#define CAPS "video/x-raw(" NVMM ")," SIZES

/* A pool of NvBufSurfaces. What an element's buffer maps is the struct; the pixels are behind its addresses. */
typedef struct { GstBufferPool parent; uint32_t width, height; int layout; } Pool;
typedef struct { GstBufferPoolClass parent; } PoolClass;
G_DEFINE_TYPE(Pool, box_pool, GST_TYPE_BUFFER_POOL)
typedef struct { Surface surface; Params params; uint8_t pixels[]; } Block;

static GstFlowReturn pool_alloc(GstBufferPool *base, GstBuffer **buffer, GstBufferPoolAcquireParams *asked) {
    Pool *pool = (Pool *)base;
    uint32_t pitch = (pool->width + 255) / 256 * 256, size = pitch * pool->height * 3 / 2;
    gsize whole = sizeof(Block) + size;
    Block *block = g_malloc0(whole);
    Params *params = &block->params;
    block->surface = (Surface){.batch = 1, .filled = 1, .memory = MEMORY, .list = params};
    *params = (Params){.width = pool->width, .height = pool->height, .pitch = pitch, .layout = pool->layout, .size = size};
    params->format = 6; /* NVBUF_COLOR_FORMAT_NV12 */
    params->data = block->pixels;
    params->desc = (uint64_t)(uintptr_t)block->pixels;
    params->planes.num = 2;
    for (int n = 0; n < 2; n++) {
        params->planes.width[n] = pool->width >> n;
        params->planes.height[n] = pool->height >> n;
        params->planes.pitch[n] = pitch;
        params->planes.bytes[n] = 1 + n;
    }
    params->planes.offset[1] = pitch * pool->height;
    *buffer = gst_buffer_new();
    gst_buffer_append_memory(*buffer, gst_memory_new_wrapped(0, block, whole, 0, sizeof(Surface), block, g_free));
    return GST_FLOW_OK;
}
static void box_pool_init(Pool *pool) {}
static void box_pool_class_init(PoolClass *class) { ((GstBufferPoolClass *)class)->alloc_buffer = pool_alloc; }

static GstBufferPool *new_pool(GstCaps *caps, int layout, guint count) {
    GstVideoInfo info;
    if (!gst_video_info_from_caps(&info, caps)) return NULL;
    Pool *pool = g_object_new(box_pool_get_type(), NULL);
    pool->width = info.width, pool->height = info.height, pool->layout = layout;
    GstStructure *config = gst_buffer_pool_get_config(&pool->parent);
    gst_buffer_pool_config_set_params(config, caps, sizeof(Surface), count, count);
    gst_buffer_pool_set_config(&pool->parent, config);
    gst_buffer_pool_set_active(&pool->parent, TRUE);
    return &pool->parent;
}
static void drop_pool(GstBufferPool **pool) {
    if (*pool) gst_buffer_pool_set_active(*pool, FALSE);
    gst_clear_object(pool);
}

/* Images, and one drawn into another of any size: the nearest pixel, turned as nvvidconv's flip-method has it. */
typedef struct { uint8_t *plane[2]; uint32_t pitch[2], width, height; } Picture;

static Picture of_surface(const Surface *surface) {
    const Params *params = surface->list;
    uint8_t *at = params->data;
    return (Picture){{at, at + params->planes.offset[1]}, {params->pitch, params->pitch}, params->width, params->height};
}
static void draw(Picture to, Picture from, int flip) {
    for (int n = 0; n < 2; n++) {
        uint32_t width = to.width >> n, height = to.height >> n, wide = from.width >> n, high = from.height >> n;
        for (uint32_t y = 0; y < height; y++) {
            uint8_t *out = to.plane[n] + y * to.pitch[n];
            uint32_t line = y * high / height;
            if (!flip && width == wide) {
                memcpy(out, from.plane[n] + line * from.pitch[n], width << n);
                continue;
            }
            for (uint32_t x = 0; x < width; x++) {
                uint32_t across = x * wide / width, down = line;
                if (flip == 1) across = wide - 1 - y * wide / height, down = x * high / width;
                if (flip == 3) across = y * wide / height, down = high - 1 - x * high / width;
                if (flip == 2 || flip == 4) across = wide - 1 - across;
                if (flip == 2 || flip == 6) down = high - 1 - down;
                memcpy(out + (x << n), from.plane[n] + down * from.pitch[n] + (across << n), 1 << n);
            }
        }
    }
}

/* nvarguscamerasrc: a sensor that never waits; where no buffer is free, its images are lost. */
typedef struct {
    GstPushSrc parent;
    int sensor, mode;
    GstBufferPool *pool;
    GstClockTime duration;
    guint64 next;
    uint8_t *scene;
    gsize scene_size;
} Camera;
typedef struct { GstPushSrcClass parent; } CameraClass;
G_DEFINE_TYPE(Camera, box_camera, GST_TYPE_PUSH_SRC)
enum { SENSOR_ID = 1, SENSOR_MODE, WBMODE, AELOCK, BL_OUTPUT, OUTPUT_BUFFERS, FLIP_METHOD };

static void camera_set(GObject *object, guint id, const GValue *value, GParamSpec *spec) {
    if (id == SENSOR_ID) ((Camera *)object)->sensor = g_value_get_int(value);
    if (id == SENSOR_MODE) ((Camera *)object)->mode = g_value_get_int(value);
}
static int sensors(void) {
    int count = 0;
    char path[64];
    while (snprintf(path, sizeof path, "/sys/class/video4linux/video%d/name", count), !access(path, F_OK)) count++;
    return getenv("EDGERT_BOX_SENSORS") ? atoi(getenv("EDGERT_BOX_SENSORS")) : count;
}
static gboolean camera_start(GstBaseSrc *base) {
    Camera *camera = (Camera *)base;
    const char *path = getenv("EDGERT_BOX_SCENE");
    camera->next = 0;
    g_file_get_contents(path ? path : "/usr/share/box/scene.nv12", (char **)&camera->scene, &camera->scene_size, NULL);
    return TRUE;
}
static gboolean camera_stop(GstBaseSrc *base) {
    g_clear_pointer(&((Camera *)base)->scene, g_free);
    drop_pool(&((Camera *)base)->pool);
    return TRUE;
}
static GstCaps *camera_fixate(GstBaseSrc *base, GstCaps *caps) {
    caps = gst_caps_make_writable(gst_caps_truncate(caps));
    GstStructure *one = gst_caps_get_structure(caps, 0);
    gst_structure_fixate_field_nearest_int(one, "width", 1920);
    gst_structure_fixate_field_nearest_int(one, "height", 1080);
    gst_structure_fixate_field_nearest_fraction(one, "framerate", 30, 1);
    return gst_caps_fixate(caps);
}
static gboolean camera_set_caps(GstBaseSrc *base, GstCaps *caps) {
    Camera *camera = (Camera *)base;
    int rate = 30, per = 1;
    gst_structure_get_fraction(gst_caps_get_structure(caps, 0), "framerate", &rate, &per);
    camera->duration = gst_util_uint64_scale(GST_SECOND, per, rate ? rate : 30);
    drop_pool(&camera->pool);
    return (camera->pool = new_pool(caps, 0, SOURCE_BUFFERS)) != NULL;
}
static gboolean own_allocation(gpointer base, GstQuery *query) { return TRUE; }
static gboolean camera_unlock(GstBaseSrc *base) {
    Camera *camera = (Camera *)base;
    if (camera->pool) gst_buffer_pool_set_flushing(camera->pool, TRUE);
    return TRUE;
}
static gboolean camera_unlock_stop(GstBaseSrc *base) {
    Camera *camera = (Camera *)base;
    if (camera->pool) gst_buffer_pool_set_flushing(camera->pool, FALSE);
    return TRUE;
}
static void camera_times(GstBaseSrc *base, GstBuffer *buffer, GstClockTime *start, GstClockTime *end) {
    *start = GST_BUFFER_PTS(buffer); /* until then, the base class waits */
    *end = *start + ((Camera *)base)->duration;
}
static GstFlowReturn camera_create(GstPushSrc *base, GstBuffer **buffer) {
    Camera *camera = (Camera *)base;
    const char *socket = getenv("EDGERT_BOX_ARGUS");
    if (access(socket ? socket : "/tmp/argus_socket", F_OK)) {
        g_printerr("(Argus) Error FileOperationFailed: Connecting to nvargus-daemon failed: No such file or directory\n");
        return GST_FLOW_EOS;
    }
    if (camera->sensor >= sensors()) {
        g_printerr("Error generated: Invalid camera device specified %d specified, %d available\n", camera->sensor, sensors());
        return GST_FLOW_EOS;
    }
    GstFlowReturn flow = gst_buffer_pool_acquire_buffer(camera->pool, buffer, NULL);
    if (flow != GST_FLOW_OK) return flow;
    GstClock *clock = gst_element_get_clock(GST_ELEMENT(base));
    if (clock) {
        GstClockTime now = gst_clock_get_time(clock) - gst_element_get_base_time(GST_ELEMENT(base));
        camera->next = MAX(camera->next, now / camera->duration);
        gst_object_unref(clock);
    }
    GstMapInfo map;
    gst_buffer_map(*buffer, &map, GST_MAP_READWRITE);
    Picture image = of_surface((Surface *)map.data);
    gsize one = SCENE_WIDTH * SCENE_HEIGHT * 3 / 2;
    if (camera->scene_size >= one) {
        uint8_t *at = camera->scene + camera->next % (camera->scene_size / one) * one;
        Picture scene = {{at, at + SCENE_WIDTH * SCENE_HEIGHT}, {SCENE_WIDTH, SCENE_WIDTH}, SCENE_WIDTH, SCENE_HEIGHT};
        draw(image, scene, 0);
    }
    gst_buffer_unmap(*buffer, &map);
    GST_BUFFER_PTS(*buffer) = camera->next * camera->duration;
    GST_BUFFER_DURATION(*buffer) = camera->duration;
    GST_BUFFER_OFFSET(*buffer) = camera->next++;
    return GST_FLOW_OK;
}
static void box_camera_init(Camera *camera) {
    gst_base_src_set_live(GST_BASE_SRC(camera), TRUE);
    gst_base_src_set_format(GST_BASE_SRC(camera), GST_FORMAT_TIME);
}
static void integer(GObjectClass *class, guint id, const char *name, int first, int least, int most) {
    GParamSpec *spec = g_param_spec_int(name, name, name, least, most, first, G_PARAM_WRITABLE | G_PARAM_STATIC_STRINGS);
    g_object_class_install_property(class, id, spec);
}
static void boolean(GObjectClass *class, guint id, const char *name) {
    GParamSpec *spec = g_param_spec_boolean(name, name, name, FALSE, G_PARAM_WRITABLE | G_PARAM_STATIC_STRINGS);
    g_object_class_install_property(class, id, spec);
}
static void box_camera_class_init(CameraClass *class) {
    GstBaseSrcClass *base = (GstBaseSrcClass *)class;
    ((GObjectClass *)class)->set_property = camera_set;
    integer((GObjectClass *)class, SENSOR_ID, "sensor-id", 0, 0, 255);
    integer((GObjectClass *)class, SENSOR_MODE, "sensor-mode", -1, -1, 255);
    integer((GObjectClass *)class, WBMODE, "wbmode", 1, 0, 9);
    boolean((GObjectClass *)class, AELOCK, "aelock");
    gst_element_class_add_pad_template((GstElementClass *)class,
        gst_pad_template_new("src", GST_PAD_SRC, GST_PAD_ALWAYS, gst_caps_from_string(CAPS)));
    gst_element_class_set_static_metadata((GstElementClass *)class, "A CSI camera's double", "Source/Video", "Films a scene", "edgert");
    base->start = camera_start, base->stop = camera_stop, base->fixate = camera_fixate, base->set_caps = camera_set_caps;
    base->unlock = camera_unlock, base->unlock_stop = camera_unlock_stop, base->get_times = camera_times;
    base->decide_allocation = (gpointer)own_allocation;
    ((GstPushSrcClass *)class)->create = camera_create;
}

/* nvvidconv: between NVMM and the host, of another size, turned. Its pool has as many buffers as it is told. */
typedef struct {
    GstBaseTransform parent;
    gboolean block_linear;
    int buffers, flip;
    GstVideoInfo in, out;
    gboolean from_nvmm, to_nvmm;
    GstBufferPool *pool;
} Converter;
typedef struct { GstBaseTransformClass parent; } ConverterClass;
G_DEFINE_TYPE(Converter, box_converter, GST_TYPE_BASE_TRANSFORM)

static void converter_set(GObject *object, guint id, const GValue *value, GParamSpec *spec) {
    Converter *converter = (Converter *)object;
    if (id == BL_OUTPUT) converter->block_linear = g_value_get_boolean(value);
    if (id == OUTPUT_BUFFERS) converter->buffers = g_value_get_int(value);
    if (id == FLIP_METHOD) converter->flip = g_value_get_int(value);
}
static GstCaps *converter_caps(GstBaseTransform *base, GstPadDirection way, GstCaps *caps, GstCaps *filter) {
    GstCaps *all = gst_caps_new_empty();
    for (guint n = 0; n < gst_caps_get_size(caps); n++) {
        for (int nvmm = 1; nvmm >= 0; nvmm--) {
            GstStructure *one = gst_structure_copy(gst_caps_get_structure(caps, n));
            gst_structure_set(one, "width", GST_TYPE_INT_RANGE, 16, 8192, "height", GST_TYPE_INT_RANGE, 16, 8192,
                "format", G_TYPE_STRING, "NV12", NULL);
            gst_structure_remove_fields(one, "colorimetry", "chroma-site", "pixel-aspect-ratio", NULL);
            gst_caps_append_structure_full(all, one, nvmm ? gst_caps_features_new(NVMM, NULL) : NULL);
        }
    }
    if (filter) {
        GstCaps *both = gst_caps_intersect_full(filter, all, GST_CAPS_INTERSECT_FIRST);
        gst_caps_unref(all);
        all = both;
    }
    return all;
}
static GstCaps *converter_fixate(GstBaseTransform *base, GstPadDirection way, GstCaps *caps, GstCaps *other) {
    int width = 0, height = 0, flip = ((Converter *)base)->flip;
    gst_structure_get(gst_caps_get_structure(caps, 0), "width", G_TYPE_INT, &width, "height", G_TYPE_INT, &height, NULL);
    other = gst_caps_make_writable(gst_caps_truncate(other));
    GstStructure *one = gst_caps_get_structure(other, 0);
    gst_structure_fixate_field_nearest_int(one, "width", flip == 1 || flip == 3 ? height : width);
    gst_structure_fixate_field_nearest_int(one, "height", flip == 1 || flip == 3 ? width : height);
    return gst_caps_fixate(other);
}
static gboolean is_nvmm(GstCaps *caps) { return gst_caps_features_contains(gst_caps_get_features(caps, 0), NVMM); }
static gboolean converter_set_caps(GstBaseTransform *base, GstCaps *in, GstCaps *out) {
    Converter *converter = (Converter *)base;
    converter->from_nvmm = is_nvmm(in), converter->to_nvmm = is_nvmm(out);
    drop_pool(&converter->pool);
    if (converter->to_nvmm) converter->pool = new_pool(out, converter->block_linear, converter->buffers);
    return gst_video_info_from_caps(&converter->in, in) && gst_video_info_from_caps(&converter->out, out);
}
static GstFlowReturn converter_buffer(GstBaseTransform *base, GstBuffer *in, GstBuffer **out) {
    Converter *converter = (Converter *)base;
    if (converter->pool) return gst_buffer_pool_acquire_buffer(converter->pool, out, NULL);
    *out = gst_buffer_new_allocate(NULL, converter->out.size, NULL);
    return GST_FLOW_OK;
}
static Picture of_map(gboolean nvmm, GstVideoInfo *info, GstMapInfo *map) {
    if (nvmm) return of_surface((Surface *)map->data);
    return (Picture){{map->data + info->offset[0], map->data + info->offset[1]},
        {info->stride[0], info->stride[1]}, info->width, info->height};
}
static GstFlowReturn converter_transform(GstBaseTransform *base, GstBuffer *in, GstBuffer *out) {
    Converter *converter = (Converter *)base;
    GstMapInfo from, to;
    gst_buffer_map(in, &from, GST_MAP_READ);
    gst_buffer_map(out, &to, GST_MAP_READWRITE);
    Picture image = of_map(converter->to_nvmm, &converter->out, &to);
    draw(image, of_map(converter->from_nvmm, &converter->in, &from), converter->flip);
    gst_buffer_unmap(out, &to);
    gst_buffer_unmap(in, &from);
    return GST_FLOW_OK;
}
static GstStateChangeReturn converter_state(GstElement *element, GstStateChange change) {
    Converter *converter = (Converter *)element;
    if (change == GST_STATE_CHANGE_PAUSED_TO_READY && converter->pool) gst_buffer_pool_set_flushing(converter->pool, TRUE);
    GstStateChangeReturn done = GST_ELEMENT_CLASS(box_converter_parent_class)->change_state(element, change);
    if (change == GST_STATE_CHANGE_PAUSED_TO_READY) drop_pool(&converter->pool);
    return done;
}
static void box_converter_init(Converter *converter) { converter->block_linear = TRUE, converter->buffers = 4; }
static void box_converter_class_init(ConverterClass *class) {
    GstBaseTransformClass *base = (GstBaseTransformClass *)class;
    ((GObjectClass *)class)->set_property = converter_set;
    boolean((GObjectClass *)class, BL_OUTPUT, "bl-output");
    integer((GObjectClass *)class, OUTPUT_BUFFERS, "output-buffers", 4, 1, 32);
    integer((GObjectClass *)class, FLIP_METHOD, "flip-method", 0, 0, 7);
    for (int n = 0; n < 2; n++)
        gst_element_class_add_pad_template((GstElementClass *)class, gst_pad_template_new(n ? "src" : "sink",
            n ? GST_PAD_SRC : GST_PAD_SINK, GST_PAD_ALWAYS, gst_caps_from_string(CAPS ";video/x-raw," SIZES)));
    gst_element_class_set_static_metadata((GstElementClass *)class, "A converter's double", "Filter/Video", "Scales and turns", "edgert");
    ((GstElementClass *)class)->change_state = converter_state;
    base->transform_caps = converter_caps, base->fixate_caps = converter_fixate, base->set_caps = converter_set_caps;
    base->prepare_output_buffer = converter_buffer, base->transform = converter_transform;
    base->decide_allocation = (gpointer)own_allocation;
}

static gboolean plugin_init(GstPlugin *plugin) {
    return gst_element_register(plugin, "nvarguscamerasrc", GST_RANK_NONE, box_camera_get_type()) &&
        gst_element_register(plugin, "nvvidconv", GST_RANK_NONE, box_converter_get_type());
}
#define PACKAGE "edgert"
GST_PLUGIN_DEFINE(GST_VERSION_MAJOR, GST_VERSION_MINOR, jetson, "doubles of a Jetson's elements", plugin_init, "0",
    "Proprietary", PACKAGE, "https://edgert.invalid")
